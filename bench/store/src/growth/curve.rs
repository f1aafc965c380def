//! Computes the growth exponent of times at several sizes, and shows the times and the exponent as text and as a plot.

use std::fmt;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use fordway_measure::{ConfidenceInterval, median, median_interval, ns_text};
use serde::Serialize;

/// How the time of a case grows with its size.
#[derive(Serialize)]
pub(crate) struct GrowthCurve {
    name: &'static str,
    sizes: Vec<usize>,
    /// The median time at each size, in nanoseconds.
    times_ns: Vec<f64>,
    exponent: ConfidenceInterval,
    /// The highest exponent allowed for the case.
    bar: f64,
}

impl GrowthCurve {
    /// Computes the curve from `rounds`, each of which contains a time in nanoseconds for each size. Errors: there are
    /// too few rounds.
    pub(crate) fn new(name: &'static str, bar: f64, sizes: Vec<usize>, rounds: &[Vec<f64>]) -> Result<Self> {
        let slopes: Vec<f64> = rounds.iter().map(|times| slope(&sizes, times)).collect();
        let at = |index: usize| median(&rounds.iter().map(|times| times[index]).collect::<Vec<_>>());
        let times_ns = (0..sizes.len()).map(|index| at(index).context("no rounds")).collect::<Result<_>>()?;
        let exponent = median_interval(&slopes).context("too few rounds")?;
        Ok(GrowthCurve { name, sizes, times_ns, exponent, bar })
    }

    pub(crate) fn holds(&self) -> bool {
        self.exponent.value <= self.bar
    }
}

/// Returns the slope of the least-squares line through the logarithms of sizes and times.
fn slope(sizes: &[usize], times: &[f64]) -> f64 {
    let points: Vec<(f64, f64)> =
        sizes.iter().zip(times).map(|(size, time)| ((*size as f64).ln(), time.ln())).collect();
    let count = points.len() as f64;
    let (mean_x, mean_y) = (
        points.iter().map(|(x, _)| x).sum::<f64>() / count,
        points.iter().map(|(_, y)| y).sum::<f64>() / count,
    );
    let covariance: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    covariance / points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum::<f64>()
}

impl fmt::Display for GrowthCurve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfidenceInterval { value, low, high, .. } = &self.exponent;
        write!(f, "{:44} {value:6.3} [{low:.3}, {high:.3}], at most {}", self.name, self.bar)?;
        write!(f, " {}:", if self.holds() { "holds" } else { "DOES NOT HOLD" })?;
        for (size, time) in self.sizes.iter().zip(&self.times_ns) {
            write!(f, "  {size}: {}", ns_text(*time as u64))?;
        }
        Ok(())
    }
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 640.0;
const MARGIN: f64 = 60.0;
/// The width reserved for the names of the curves.
const LEGEND: f64 = 330.0;

/// Plots all curves as an SVG with logarithmic axes.
pub(crate) fn picture(curves: &[GrowthCurve]) -> String {
    let sizes = || curves.iter().flat_map(|curve| &curve.sizes).map(|size| (*size as f64).log10());
    let times = || curves.iter().flat_map(|curve| &curve.times_ns).map(|time| time.log10());
    let (right, top) = (sizes().fold(1.0, f64::max).ceil(), times().fold(1.0, f64::max).ceil());
    let (left, bottom) = (sizes().fold(right, f64::min).floor(), times().fold(top, f64::min).floor());
    let x = |log: f64| MARGIN + (log - left) / (right - left).max(1.0) * (WIDTH - LEGEND - MARGIN);
    let y = |log: f64| HEIGHT - MARGIN - (log - bottom) / (top - bottom).max(1.0) * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for power in left as i32..=right as i32 {
        let at = x(f64::from(power));
        let _ = writeln!(
            svg,
            "<text x=\"{at}\" y=\"{}\" text-anchor=\"middle\">10^{power}</text>",
            HEIGHT - 35.0
        );
    }
    for power in bottom as i32..=top as i32 {
        let at = y(f64::from(power));
        let label = ns_text(10f64.powi(power) as u64);
        let _ = writeln!(
            svg,
            "<text x=\"4\" y=\"{at}\">{label}</text><path d=\"M{MARGIN} {at}H{}\" stroke=\"#ddd\"/>",
            WIDTH - LEGEND
        );
    }
    for (number, curve) in curves.iter().enumerate() {
        let points = curve.sizes.iter().zip(&curve.times_ns);
        let points: Vec<_> = points
            .map(|(size, time)| format!("{:.1},{:.1}", x((*size as f64).log10()), y(time.log10())))
            .collect();
        let colour = format!("hsl({} 70% 40%)", number * 137 % 360);
        let (legend, line) = (WIDTH - LEGEND + 15.0, MARGIN + number as f64 * 17.0);
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{legend}\" y=\"{line}\" fill=\"{colour}\">{} ({:.2})</text>",
            points.join(" "),
            curve.name,
            curve.exponent.value
        );
    }
    svg.push_str("</svg>\n");
    svg
}

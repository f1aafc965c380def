//! A ledger as tables in the terminal.

use std::fmt::Write as _;

use fordway_measure::{Interval, bytes_text, ns_text};

use super::account::{Account, Entry, RungAccount};

/// A fit whose median error at sizes left out is larger is called poor.
pub const FIT_MEDIAN_PERCENT_MAX: f64 = 10.0;

/// One line for each line of each rung's fit. `docs/explain/ledger.md` explains the columns.
pub fn rung_table(account: &Account) -> String {
    let mut rows = vec![
        ["rung", "sizes", "per operation", "per MiB", "left out, median", "largest"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for rung in &account.rungs {
        rows.extend(pieces(rung));
    }
    columns(&rows, 2)
}

fn pieces(rung: &RungAccount) -> Vec<Vec<String>> {
    let Some(fit) = &rung.fit else { return Vec::new() };
    let intervals = rung.per_operation_ns.iter().zip(&rung.per_byte_ns);
    let line = |(at, (piece, (operation, byte)))| {
        let piece: &super::Piece = piece;
        let is_first = at == 0;
        let error = |share: Option<f64>| match share {
            Some(share) if is_first => percent(share),
            None if is_first => "-".to_owned(),
            _ => String::new(),
        };
        let mut left_out = error(fit.left_out_median);
        if is_first && fit.left_out_median.is_some_and(|share| 100.0 * share > FIT_MEDIAN_PERCENT_MAX) {
            left_out.push_str(" poor");
        }
        vec![
            if is_first { rung.rung.clone() } else { String::new() },
            format!("{} - {}", bytes_text(piece.from_bytes), bytes_text(piece.to_bytes)),
            time(operation, 1.0),
            time(byte, f64::from(1 << 20)),
            left_out,
            error(fit.left_out_max),
        ]
    };
    fit.pieces.iter().zip(intervals).enumerate().map(line).collect()
}

/// One way at one size: its rungs, their sum, the whole, and what is left.
pub fn entry_table(entry: &Entry) -> String {
    let mut rows = Vec::new();
    let mut row = |name: &str, ns: &Interval| {
        let share = percent(ns.value / entry.measured_ns.value);
        rows.push(vec![name.to_owned(), time(ns, 1.0), share]);
    };
    for part in &entry.parts {
        match part.times == 1.0 {
            true => row(&part.rung, &part.ns),
            false => row(&format!("{} x {}", part.times, part.rung), &part.ns),
        }
    }
    row("sum of rungs", &entry.sum_ns);
    row("measured", &entry.measured_ns);
    let Interval { value, low, high, .. } = entry.residual_share;
    rows.push(vec![
        "residual".to_owned(),
        time(&entry.residual_ns, 1.0),
        format!("{} [{}, {}]", percent(value), percent(low), percent(high)),
    ]);
    let mut text = format!("{}, {}\n", entry.path, bytes_text(entry.size_bytes));
    for line in columns(&rows, 1).lines() {
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A time with its interval, multiplied with `factor`.
fn time(ns: &Interval, factor: f64) -> String {
    let text = |ns: f64| {
        let sign = if ns * factor <= -0.5 { "-" } else { "" };
        format!("{sign}{}", ns_text((ns * factor).abs().round() as u64))
    };
    format!("{} [{}, {}]", text(ns.value), text(ns.low), text(ns.high))
}

/// `rows` in columns, the first `left` of them to the left.
fn columns(rows: &[Vec<String>], left: usize) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cell = |(at, cell): (usize, &String)| match at < left {
            true => format!("{cell:<width$}", width = widths[at]),
            false => format!("{cell:>width$}", width = widths[at]),
        };
        let line: Vec<String> = row.iter().enumerate().map(cell).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

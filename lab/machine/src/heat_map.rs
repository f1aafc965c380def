//! Similarities as a picture.

use std::fmt::Write;

use crate::Table;

const CELL_WIDTH: usize = 44;
const CELL_HEIGHT: usize = 24;
/// What a letter of 12 pixels takes, on the safe side.
const LETTER_WIDTH: usize = 8;
const TITLE_HEIGHT: usize = 32;
/// From this similarity on the cell is dark, and what is written in it light.
const DARK: f64 = 0.6;

/// An SVG picture of a table: white is 0, dark blue is 1. Names can be of any letters.
pub fn heat_map(table: &Table, title: &str) -> String {
    let widest =
        |names: &[String]| names.iter().map(|name| name.chars().count()).max().unwrap_or(0) * LETTER_WIDTH;
    let (left, top) = (widest(&table.rows) + 16, TITLE_HEIGHT + widest(&table.columns) + 8);
    let width = (left + CELL_WIDTH * table.columns.len() + 16).max(title.chars().count() * LETTER_WIDTH + 32);
    let height = top + CELL_HEIGHT * table.rows.len() + 16;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"16\" y=\"22\" font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    for (at, name) in table.columns.iter().enumerate() {
        let (x, y) = (left + CELL_WIDTH * at + CELL_WIDTH / 2 + 4, top - 6);
        let _ = writeln!(svg, "<text transform=\"translate({x} {y}) rotate(-90)\">{}</text>", escaped(name));
    }
    for (at, name) in table.rows.iter().enumerate() {
        let y = top + CELL_HEIGHT * at;
        let (x, baseline) = (left - 8, y + 16);
        let _ =
            writeln!(svg, "<text x=\"{x}\" y=\"{baseline}\" text-anchor=\"end\">{}</text>", escaped(name));
        row(&mut svg, table, at, (left, y));
    }
    svg + "</svg>\n"
}

fn row(svg: &mut String, table: &Table, at: usize, (left, y): (usize, usize)) {
    for (number, (column, value)) in table.columns.iter().zip(&table.values[at]).enumerate() {
        let x = left + CELL_WIDTH * number;
        let (centre, baseline) = (x + CELL_WIDTH / 2, y + 16);
        let (fill, ink) = (colour(*value), if *value >= DARK { "white" } else { "black" });
        let tip = escaped(&format!("{} and {column}: {value:.3}", table.rows[at]));
        let _ = writeln!(
            svg,
            "<g><title>{tip}</title><rect x=\"{x}\" y=\"{y}\" width=\"{CELL_WIDTH}\" height=\"{CELL_HEIGHT}\" fill=\"{fill}\"/>\
             <text x=\"{centre}\" y=\"{baseline}\" text-anchor=\"middle\" fill=\"{ink}\">{value:.2}</text></g>"
        );
    }
}

/// From white to dark blue; its square, as what matters is near 1.
fn colour(similarity: f64) -> String {
    let share = similarity * similarity;
    let channel = |dark: f64| (255.0 + (dark - 255.0) * share).round() as u8;
    format!("#{:02x}{:02x}{:02x}", channel(8.0), channel(48.0), channel(107.0))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_drawn_and_names_are_escaped() {
        let table = Table {
            rows: vec!["a<b".to_owned(), "c".to_owned()],
            columns: vec!["d&\"e".to_owned()],
            values: vec![vec![0.0], vec![1.0]],
        };
        let svg = heat_map(&table, "Rows > columns");
        assert_eq!((svg.matches("<rect x=").count(), svg.matches("<g>").count()), (2, 2));
        assert!(svg.contains("<title>a&lt;b and d&amp;&quot;e: 0.000</title>"), "{svg}");
        assert!(svg.contains("Rows &gt; columns") && !svg.contains("a<b"), "{svg}");
        assert!(svg.contains("fill=\"#ffffff\"") && svg.contains("fill=\"#08306b\""), "{svg}");
    }
}

//! Table IV of Kratzke and Quint, as golden data.

use fordway_machine::{Table, heat_map};

fn table_iv() -> Table {
    Table::parse(include_str!("../../../contrib/catalogues/kratzke-quint-table-iv.toml")).unwrap()
}

#[test]
fn its_size_and_corners_are_as_printed() {
    let table = table_iv();
    assert_eq!((table.rows.len(), table.columns.len()), (28, 18));
    assert_eq!((table.rows[0].as_str(), table.rows[27].as_str()), ("m4.10xlarge", "t2.micro"));
    assert_eq!((table.columns[0].as_str(), table.columns[17].as_str()), ("n1-highmem-32", "f1-micro"));
    let corners = [table.values[0][0], table.values[0][17], table.values[27][0], table.values[27][17]];
    assert_eq!(corners, [0.67, 0.13, 0.31, 0.46]);
    assert_eq!(heat_map(&table, "Table IV").matches("<g>").count(), 504);
}

/// What the paper concludes from it.
#[test]
fn exactly_three_pairs_are_similar() {
    let similar: Vec<_> = table_iv().pairs().into_iter().filter(|pair| pair.similarity >= 0.90).collect();
    let similar: Vec<_> = similar.iter().map(|p| (p.row.as_str(), p.column.as_str(), p.similarity)).collect();
    let expected = [
        ("m3.large", "n1-standard-2", 0.98),
        ("m3.2xlarge", "n1-standard-8", 0.96),
        ("m3.xlarge", "n1-standard-4", 0.96),
    ];
    assert_eq!(similar, expected);
}

/// Distances obey the triangle inequality by way of any two machines, within what two digits hide. A scanning
/// error near 1 breaks it; one among the low values may not.
#[test]
fn its_distances_are_those_of_a_metric() {
    let table = table_iv();
    let root = |value: f64| value.max(0.0).sqrt();
    let least = |row: usize, column: usize| root(1.0 - table.values[row][column] - 0.005);
    let most = |row: usize, column: usize| root(1.0 - table.values[row][column] + 0.005);
    for (a, b) in (0..28).flat_map(|a| (0..28).map(move |b| (a, b))) {
        for (g, h) in (0..18).flat_map(|g| (0..18).map(move |h| (g, h))) {
            let way_round = most(a, h) + most(b, h) + most(b, g);
            assert!(least(a, g) <= way_round, "{} {}", table.rows[a], table.columns[g]);
        }
    }
}

//! Suggestions for mistyped names.

/// Returns an error message that reports the unknown name `wrong`, suggests the most similar name in `known`, and lists
/// all names in `known`.
pub fn unknown_name(what: &str, wrong: &str, known: &[&str]) -> String {
    let hint = nearest(wrong, known).map_or(".".to_owned(), |name| format!("; did you mean {name}?"));
    format!("there is no {what} {wrong:?}{hint} Choose from: {}", known.join(", "))
}

/// Returns the name with the smallest edit distance from `wrong`. The maximum distance is a third of the letters of
/// `wrong`, but at least 2.
fn nearest<'n>(wrong: &str, known: &[&'n str]) -> Option<&'n str> {
    let allowed = (wrong.chars().count() / 3).max(2);
    let rated = known.iter().map(|name| (distance(wrong, name), *name));
    rated.filter(|(changes, _)| *changes <= allowed).min_by_key(|(changes, _)| *changes).map(|(_, name)| name)
}

/// Returns the edit distance: the number of letters to insert, delete, replace, or swap with a neighbour to turn
/// `other` into `one` (Damerau 1964, restricted to changes that do not overlap). Ignores the case of `one`.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) =
        (one.to_lowercase().chars().collect(), other.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted_in_letters() {
        for (one, other, changes) in [
            ("", "", 0),
            ("bare", "bare", 0),
            ("vxaln", "vxlan", 1),
            ("bar", "bare", 1),
            ("", "ab", 2),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), changes, "{one} {other}");
        }
    }

    #[test]
    fn the_nearest_name_is_offered_and_a_far_one_is_not() {
        let known = ["bare", "vxlan", "tunnel"];
        assert_eq!(nearest("vxaln", &known), Some("vxlan"));
        assert_eq!(nearest("Bare", &known), Some("bare"));
        assert_eq!(nearest("wireguard", &known), None);
        assert_eq!(
            unknown_name("set-up", "vxaln", &known),
            "there is no set-up \"vxaln\"; did you mean vxlan? Choose from: bare, vxlan, tunnel"
        );
        assert_eq!(
            unknown_name("set-up", "wireguard", &known),
            "there is no set-up \"wireguard\". Choose from: bare, vxlan, tunnel"
        );
    }
}

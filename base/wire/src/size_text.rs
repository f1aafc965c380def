//! Human-readable sizes.

const UNITS: [(&str, u64); 12] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
];

/// Reads `64MiB`, `64M` (both 1,024-based), `64MB` (1,000-based) or a plain number of bytes.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let unit = UNITS.iter().find_map(|(name, factor)| Some((lower.strip_suffix(name)?, *factor)));
    let (digits, factor) = unit.unwrap_or((lower.strip_suffix('b').unwrap_or(&lower), 1));
    let number: u64 = digits
        .trim()
        .parse()
        .map_err(|_| format!("{text:?} is not a size; write a whole number with a unit, such as 16MiB"))?;
    number.checked_mul(factor).ok_or_else(|| format!("{text:?} is more than 16 EiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("5b", 5), ("16MiB", 16 << 20), ("16 m", 16 << 20), ("2MB", 2_000_000)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for bad in ["", "MiB", "-1", "1.5GiB", "12 parsecs", "99999999TiB"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}

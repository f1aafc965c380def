//! Numbers as people read them. Sizes are in powers of 1,024, times in powers of 1,000.

/// `1536` is `1.5 KiB`.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    if power == 0 {
        return format!("{bytes} B");
    }
    format!("{} {}", three_digits(bytes as f64 / (1u64 << (10 * power)) as f64), UNITS[power])
}

/// `1500` is `1.5 µs`.
pub fn ns_text(ns: u64) -> String {
    let (divisor, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1e3, "µs"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{} {unit}", three_digits(ns as f64 / divisor))
}

/// A rate in operations or units per second, in as few digits as say it.
pub fn rate_text(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e6 => format!("{} M", three_digits(rate / 1e6)),
        rate if rate >= 1e4 => format!("{} k", three_digits(rate / 1e3)),
        rate => three_digits(rate),
    }
}

fn three_digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        assert_eq!(["0 B", "1023 B", "1.50 KiB", "16.0 EiB"], [0, 1023, 1536, u64::MAX].map(bytes_text)[..]);
        assert_eq!(
            ["999 ns", "1.50 µs", "12.3 ms", "2.00 s"],
            [999, 1500, 12_345_678, 2_000_000_000].map(ns_text)[..]
        );
        assert_eq!(
            ["0.50", "123", "9999", "12.3 k", "1.50 M"],
            [0.5, 123.4, 9999.0, 12_345.0, 1.5e6].map(rate_text)[..]
        );
    }
}

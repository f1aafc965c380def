//! Parsing and printing of sizes, rates and times.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Parses a duration such as `30ms`, `90s`, `30m`, `24h`, `7d` or `2w`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let lower = text.trim().to_ascii_lowercase();
    // `us` and `ms` are tried before `s`, which is a suffix of both.
    let units = [("us", 1), ("ms", 1_000), ("s", SECOND_US), ("m", 60 * SECOND_US), ("h", 3_600 * SECOND_US)];
    let long_units = [("d", 86_400 * SECOND_US), ("w", 604_800 * SECOND_US)];
    let unit = units.iter().chain(&long_units).find_map(|(name, us)| Some((lower.strip_suffix(name)?, *us)));
    let us = unit.and_then(|(digits, us)| digits.parse::<u64>().ok()?.checked_mul(us));
    us.map(Duration::from_micros).ok_or_else(|| {
        format!("{text:?} is not a duration; write a whole number with a unit, such as 30ms, 90s, 24h or 7d")
    })
}

const SECOND_US: u64 = 1_000_000;

/// Parses a rate such as `1gbit`, `100mbit` or `64kbit`; returns bits per second.
pub fn parse_bit_rate(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let units = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];
    let unit = units.iter().find_map(|(name, factor)| Some((lower.strip_suffix(name)?, *factor)));
    let rate = unit.and_then(|(digits, factor)| digits.parse::<u64>().ok()?.checked_mul(factor));
    rate.filter(|rate| *rate > 0).ok_or_else(|| {
        format!("{text:?} is not a rate; write a whole number with a unit, such as 1gbit or 100mbit")
    })
}

/// Formats a count with its noun, such as `1 range` or `2 ranges`. The plural of `thing` must be formed by adding an
/// `s`.
pub fn counted(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// Formats a size as `aws s3 ls --human-readable` does: `1.5 KiB`, `1 Byte`, `300 Bytes`.
pub fn human_bytes(bytes: u64) -> String {
    match bytes {
        1 => return "1 Byte".to_owned(),
        0..1024 => return format!("{bytes} Bytes"),
        _ => {}
    }
    let mut value = bytes as f64;
    let mut unit = "";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        // A value of 1,023.95 or more would be printed as 1024.0 in the smaller unit.
        if value < 1023.95 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    format!("{value:.1} {unit}")
}

/// Formats a size as a plain number, or in human-readable form if `human` is set.
pub fn show_bytes(bytes: u64, human: bool) -> String {
    if human { human_bytes(bytes) } else { bytes.to_string() }
}

/// Formats a time as `aws s3 ls` does: `2024-05-06 07:08:09` in the machine's time zone.
pub fn local_time(time: SystemTime) -> String {
    let stamp = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    stamp.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Formats a time for JSON: `2024-05-06T07:08:09Z`, with fractions of a second only if they are not 0.
pub fn utc_time(time: SystemTime) -> String {
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn times_are_read() {
        for (text, seconds) in [("0s", 0), ("90s", 90), ("30m", 1_800), ("24H", 86_400), ("7d", 604_800)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse_duration("2w"), parse_duration("14d"));
        assert_eq!(parse_duration("2000ms"), parse_duration("2s"));
        assert_eq!(parse_duration("150us"), Ok(Duration::from_micros(150)));
        for bad in ["", "7", "d", "-1d", "1.5h", "1d2h", "99999999999999999w"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bit_rates_are_read() {
        let read = ["1gbit", "100Mbit", "64kbit"].map(|text| parse_bit_rate(text).unwrap());
        assert_eq!(read, [1_000_000_000, 100_000_000, 64_000]);
        for bad in ["", "1", "gbit", "0gbit", "1.5gbit", "1gb", "99999999999gbit"] {
            assert!(parse_bit_rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        let shown = [0, 1, 1023, 1024, 1536, (1 << 20) - 1, 1 << 20, u64::MAX].map(human_bytes);
        assert_eq!(
            shown,
            ["0 Bytes", "1 Byte", "1023 Bytes", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 MiB", "16.0 EiB"]
        );
    }

    #[test]
    fn times_in_json_are_utc() {
        assert_eq!(utc_time(UNIX_EPOCH + Duration::from_secs(86_400)), "1970-01-02T00:00:00Z");
    }
}

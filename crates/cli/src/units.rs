//! Sizes and times as people write and read them.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Reads `90s`, `30m`, `24h`, `7d` or `2w`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let lower = text.trim().to_ascii_lowercase();
    let units = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400), ("w", 604_800)];
    let unit = units.iter().find_map(|(name, seconds)| Some((lower.strip_suffix(name)?, *seconds)));
    let seconds = unit.and_then(|(digits, seconds)| digits.parse::<u64>().ok()?.checked_mul(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        format!("{text:?} is not a time; write a whole number with a unit, such as 30m, 24h or 7d")
    })
}

/// `1.5 KiB`, `1 Byte`, `300 Bytes`: the form that `aws s3 ls --human-readable` prints.
pub(crate) fn human_bytes(bytes: u64) -> String {
    match bytes {
        1 => return "1 Byte".to_owned(),
        0..1024 => return format!("{bytes} Bytes"),
        _ => {}
    }
    let mut value = bytes as f64;
    let mut unit = "";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        // 1,023.95 and more would be shown as 1024.0 of the smaller unit.
        if value < 1023.95 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    format!("{value:.1} {unit}")
}

/// A size as a plain number or in human form.
pub(crate) fn show_bytes(bytes: u64, human: bool) -> String {
    if human { human_bytes(bytes) } else { bytes.to_string() }
}

/// `2024-05-06 07:08:09` in the machine's time zone, as `aws s3 ls` shows it.
pub(crate) fn local_time(time: SystemTime) -> String {
    let stamp = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    stamp.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// `2024-05-06T07:08:09Z`, for JSON; fractions of a second only where there are some.
pub(crate) fn utc_time(time: SystemTime) -> String {
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
        for bad in ["", "7", "d", "-1d", "1.5h", "1d2h", "99999999999999999w"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
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

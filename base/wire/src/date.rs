//! Times in S3's formats: RFC 9110 in headers, ISO 8601 in XML and in signatures.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY_S: i64 = 86_400;

/// A time in UTC, split into the fields that the text formats use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtcTime {
    /// The year of the Gregorian calendar.
    pub year: i64,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
    /// Seconds since midnight, 0 to 86,399.
    pub second_of_day: u32,
}

impl From<SystemTime> for UtcTime {
    /// Converts a time; times before 1970 become 1970.
    fn from(time: SystemTime) -> Self {
        let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
        let (year, month, day) = civil_from_days(seconds.div_euclid(DAY_S));
        UtcTime { year, month, day, second_of_day: seconds.rem_euclid(DAY_S) as u32 }
    }
}

impl UtcTime {
    /// Formats the day as `20130524`, for a signing key.
    pub fn day_stamp(self) -> String {
        format!("{:04}{:02}{:02}", self.year, self.month, self.day)
    }

    /// Formats the time as `20130524T000000Z`, the format of `x-amz-date`.
    pub fn amz_date(self) -> String {
        let (hour, minute, second) = self.clock();
        format!("{}T{hour:02}{minute:02}{second:02}Z", self.day_stamp())
    }

    fn clock(self) -> (u32, u32, u32) {
        (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60)
    }
}

/// Reads `2009-10-12T17:50:30.000Z`, with or without a fraction, and with `Z` or an offset from UTC, such as `+02:00`.
/// Returns `None` for anything else, and for times before 1970.
pub fn parse_iso8601(text: &str) -> Option<SystemTime> {
    let (date, time) = text.split_once('T')?;
    parse_date_and_time(date, time)
}

/// Reads a time like [`parse_iso8601`], but also accepts other forms of ISO 8601 and RFC 3339 that programs print: a
/// space instead of `T`, lower-case letters, an offset without a colon (`+0200`, `+02`), white space before the offset,
/// `UTC` instead of `Z`, and fractions with more than nine digits, the rest of which are dropped. Returns `None` for a
/// time without an offset, because the time zone is then unknown.
pub fn parse_printed_iso8601(text: &str) -> Option<SystemTime> {
    let text = text.trim().to_ascii_uppercase();
    let (date, rest) = text.split_once(['T', ' '])?;
    let rest = rest.trim_start();
    let clock_bytes = rest.find(|c: char| !c.is_ascii_digit() && !matches!(c, ':' | '.' | ','))?;
    let (clock, zone) = rest.split_at(clock_bytes);
    let clock = clock.replace(',', ".");
    let clock = match clock.split_once('.') {
        Some((clock, fraction)) if fraction.len() > 9 => format!("{clock}.{}", &fraction[..9]),
        _ => clock,
    };
    let zone = match zone.trim() {
        "UTC" | "GMT" => "Z".to_owned(),
        offset if offset.len() == 3 => format!("{offset}:00"),
        offset if offset.len() == 5 && offset.is_ascii() => format!("{}:{}", &offset[..3], &offset[3..]),
        zone => zone.to_owned(),
    };
    parse_date_and_time(date, &format!("{clock}{zone}"))
}

fn parse_date_and_time(date: &str, time: &str) -> Option<SystemTime> {
    let (time, ahead_s) = match time.strip_suffix('Z') {
        Some(time) => (time, 0),
        None => split_offset(time)?,
    };
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let local = time_of(numbers(date, '-')?, numbers(clock, ':')?, nanoseconds(fraction)?)?;
    let ahead = Duration::from_secs(ahead_s.unsigned_abs());
    match ahead_s {
        ..0 => local.checked_add(ahead),
        _ => local.checked_sub(ahead).filter(|time| *time >= UNIX_EPOCH),
    }
}

/// Splits `17:50:30+02:00` into the time of day and the number of seconds by which the time is ahead of UTC.
fn split_offset(time: &str) -> Option<(&str, i64)> {
    let (time, offset) = time.split_at(time.rfind(['+', '-'])?);
    let (hours, minutes) = offset[1..].split_once(':')?;
    let two = |text: &str| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<i64>().ok()).flatten()
    };
    let (hours, minutes) =
        (two(hours).filter(|hours| *hours < 24)?, two(minutes).filter(|minutes| *minutes < 60)?);
    let seconds = hours * 3600 + minutes * 60;
    Some((time, if offset.starts_with('-') { -seconds } else { seconds }))
}

/// Reads `20130524T000000Z`, the format of `x-amz-date`. Returns `None` for anything else. Cost: no allocation, which
/// matters because every signed request contains such a date.
pub fn parse_amz_date(text: &str) -> Option<SystemTime> {
    let bytes: &[u8; 16] = text.as_bytes().try_into().ok()?;
    let is_digit = |at: usize| bytes[at].is_ascii_digit();
    if bytes[8] != b'T' || bytes[15] != b'Z' || !(0..8).chain(9..15).all(is_digit) {
        return None;
    }
    let two = |at: usize| u32::from(bytes[at] - b'0') * 10 + u32::from(bytes[at + 1] - b'0');
    time_of([two(0) * 100 + two(2), two(4), two(6)], [two(9), two(11), two(13)], 0)
}

/// Converts a date (year, month, day) and a time of day (hour, minute, second); `None` if there is no such time.
fn time_of([year, month, day]: [u32; 3], [hour, minute, second]: [u32; 3], ns: u32) -> Option<SystemTime> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = days_from_civil(i64::from(year), month, day);
    // An invalid day, such as 30 February, would become a day of the next month.
    if civil_from_days(days) != (i64::from(year), month, day) {
        return None;
    }
    let seconds = days * DAY_S + i64::from(hour * 3600 + minute * 60 + second);
    Some(UNIX_EPOCH + Duration::new(u64::try_from(seconds).ok()?, ns))
}

/// Writes `2009-10-12T17:50:30.000Z`; fractions of a millisecond are dropped.
pub fn format_iso8601(time: SystemTime) -> String {
    let utc = UtcTime::from(time);
    let (UtcTime { year, month, day, .. }, (hour, minute, second)) = (utc, utc.clock());
    let ms = time.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Reads the date of an HTTP header, in any of the three formats of RFC 9110. UTC may also be written as `UTC` (libs3),
/// or as `-0000` or `+0000` (RFC 5322; botocore).
pub fn parse_http(text: &str) -> Option<SystemTime> {
    match [" UTC", " -0000", " +0000"].iter().find_map(|zone| text.strip_suffix(zone)) {
        Some(start) => httpdate::parse_http_date(&format!("{start} GMT")).ok(),
        None => httpdate::parse_http_date(text).ok(),
    }
}

/// Writes the date of an HTTP header; fractions of a second are dropped.
pub fn format_http(time: SystemTime) -> String {
    http_date(time).map(char::from).iter().collect()
}

/// Writes the date of an HTTP header, as [`format_http`] does. Times before 1970 become 1970, and times after the year
/// 9999 become the end of that year. Cost: no allocation, which matters because every response contains such dates.
pub fn http_date(time: SystemTime) -> [u8; 29] {
    const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed";
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    const LAST_S: u64 = 253_402_300_799;
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().min(LAST_S);
    let utc = UtcTime::from(UNIX_EPOCH + Duration::from_secs(seconds));
    let (hour, minute, second) = utc.clock();
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    let mut put = |at: usize, from: &[u8]| text[at..at + from.len()].copy_from_slice(from);
    let name = |names: &'static [u8], number: usize| &names[3 * number..3 * number + 3];
    // 1970 began on a Thursday.
    put(0, name(DAYS, (seconds / DAY_S as u64 % 7) as usize));
    put(5, &two_digits(utc.day));
    put(8, name(MONTHS, utc.month as usize - 1));
    put(12, &two_digits(utc.year as u32 / 100));
    put(14, &two_digits(utc.year as u32 % 100));
    put(17, &two_digits(hour));
    put(20, &two_digits(minute));
    put(23, &two_digits(second));
    text
}

fn two_digits(number: u32) -> [u8; 2] {
    [b'0' + (number / 10 % 10) as u8, b'0' + (number % 10) as u8]
}

fn numbers(text: &str, separator: char) -> Option<[u32; 3]> {
    let mut fields = text.split(separator).map(|field| {
        let is_number = (2..=4).contains(&field.len()) && field.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| field.parse().ok()).flatten()
    });
    let found = [fields.next()??, fields.next()??, fields.next()??];
    fields.next().is_none().then_some(found)
}

fn nanoseconds(fraction: &str) -> Option<u32> {
    if fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let scale = 10_u32.pow(9 - fraction.len() as u32);
    Some(fraction.parse().unwrap_or(0) * scale)
}

/// Returns the number of days from 1970-01-01 to a Gregorian date. For the computation, the year starts in March, so
/// that the leap day comes last and the lengths of the months follow a fixed pattern.
fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month_from_march = i64::from((month + 9) % 12);
    let day_of_year = (153 * month_from_march + 2) / 5 + i64::from(day) - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u32;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 } as u32;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_headers_are_as_another_library_writes_them() {
        for day in (0..2_932_896).step_by(97) {
            let time = UNIX_EPOCH + Duration::from_secs(day * 86_400 + day * 7919 % 86_400);
            assert_eq!(format_http(time), httpdate::fmt_http_date(time));
        }
        assert_eq!(format_http(UNIX_EPOCH - Duration::from_secs(1)), "Thu, 01 Jan 1970 00:00:00 GMT");
        let far = UNIX_EPOCH + Duration::from_secs(300_000_000_000);
        assert_eq!(format_http(far), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn known_times() {
        let time = parse_iso8601("2013-05-24T00:00:00.000Z").unwrap();
        assert_eq!(time, UNIX_EPOCH + Duration::from_secs(1_369_353_600));
        assert_eq!(UtcTime::from(time).amz_date(), "20130524T000000Z");
        assert_eq!(parse_amz_date("20130524T000000Z"), Some(time));
        for bad in
            ["20130524T000000", "20130524 000000Z", "2013-05-24T0000Z", "2013052äT00000Z", "20131324T000000Z"]
        {
            assert_eq!(parse_amz_date(bad), None, "{bad}");
        }
        assert_eq!(format_http(time), "Fri, 24 May 2013 00:00:00 GMT");
        for text in [
            "Fri, 24 May 2013 00:00:00 GMT",
            "Fri, 24 May 2013 00:00:00 UTC",
            "Fri, 24 May 2013 00:00:00 -0000",
            "Fri, 24 May 2013 00:00:00 +0000",
            "Friday, 24-May-13 00:00:00 GMT",
            "Fri May 24 00:00:00 2013",
        ] {
            assert_eq!(parse_http(text), Some(time), "{text}");
        }
        assert_eq!(parse_http("Fri, 24 May 2013"), None);
        let leap = parse_iso8601("2024-02-29T23:59:59.25Z").unwrap();
        assert_eq!(leap, UNIX_EPOCH + Duration::new(1_709_251_199, 250_000_000));
        assert_eq!(format_iso8601(leap), "2024-02-29T23:59:59.250Z");
    }

    #[test]
    fn every_day_survives() {
        for days in 0..60_000 {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, month, day), days);
        }
    }

    #[test]
    fn refuses_what_is_no_time() {
        for bad in [
            "",
            "2013-05-24",
            "2013-13-24T00:00:00Z",
            "2013-05-24T24:00:00Z",
            "a-b-cT0:0:0Z",
            "2013-02-29T00:00:00Z",
            "2013-04-31T00:00:00Z",
            "2013-05-24T00:00:00",
            "2013-05-24T00:00:00+0200",
            "2013-05-24T00:00:00+24:00",
            "2013-05-24T00:00:00+02:60",
            "2013-05-24T00:00:00+2:00",
            "2013-05-24T00:00:00+02:00Z",
            "2013-05-24T00:00:00\u{2212}02:00",
            "1970-01-01T01:00:00+02:00",
        ] {
            assert_eq!(parse_iso8601(bad), None, "{bad}");
        }
        assert_eq!(parse_amz_date("20130229T000000Z"), None);
    }

    #[test]
    fn times_that_programs_print() {
        let utc = parse_iso8601("2013-05-24T22:30:00Z");
        for same in [
            "2013-05-24T22:30:00Z",
            "2013-05-24 22:30:00Z",
            "2013-05-24t22:30:00z",
            "2013-05-24T22:30:00+0000",
            "2013-05-25T00:30:00+0200",
            "2013-05-25 00:30:00 +0200",
            "2013-05-25T00:30:00+02",
            "2013-05-24T18:00:00-04:30",
            "2013-05-24T22:30:00.000000000000Z",
            "2013-05-24T22:30:00,000Z",
            "2013-05-24 22:30:00 UTC",
        ] {
            assert_eq!(parse_printed_iso8601(same), utc, "{same}");
        }
        for bad in [
            "",
            "2013-05-24T22:30:00",
            "soon",
            "T",
            "2013-05-24 \u{e4}",
            "2013-05-24T22:30:00+1\u{e4}1",
            "1 +",
        ] {
            assert_eq!(parse_printed_iso8601(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_may_have_an_offset() {
        let utc = parse_iso8601("2013-05-24T22:30:00.5Z").unwrap();
        for same in [
            "2013-05-24T22:30:00.5+00:00",
            "2013-05-24T22:30:00.500000-00:00",
            "2013-05-25T00:30:00.5+02:00",
            "2013-05-24T18:00:00.5-04:30",
        ] {
            assert_eq!(parse_iso8601(same), Some(utc), "{same}");
        }
    }
}

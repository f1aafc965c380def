//! Documents of object lock: a bucket's configuration, the retention of a version, and its legal hold.

use fordway_store::{
    DefaultRetention, LockConfiguration, Result, Retention, RetentionMode, RetentionPeriod, ms_since_1970,
};

use super::{ResponseDocumentBuilder, bad, for_each_element, number};
use crate::date::{format_iso8601, parse_iso8601};

/// A bucket's configuration as it appears in a document. The caller must check its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectLockDocument {
    /// `Enabled`, or another string.
    pub state: Option<String>,
    /// Whether there is a rule.
    pub has_rule: bool,
    /// The mode of the default retention.
    pub mode: Option<String>,
    /// The length of the default retention in days.
    pub days: Option<i64>,
    /// The length of the default retention in years.
    pub years: Option<i64>,
}

impl ObjectLockDocument {
    /// Reads a document. Errors: `BadResponse`.
    pub fn read(document: &[u8]) -> Result<Self> {
        let mut found = ObjectLockDocument::default();
        for_each_element(document, "ObjectLockConfiguration", |path, text| {
            match path {
                "ObjectLockEnabled" => found.state = Some(text.trim().to_owned()),
                "Rule" => found.has_rule = true,
                "Rule/DefaultRetention/Mode" => found.mode = Some(text.trim().to_owned()),
                "Rule/DefaultRetention/Days" => found.days = Some(number(path, text)?),
                "Rule/DefaultRetention/Years" => found.years = Some(number(path, text)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the configuration. Returns `None` for a rule with an unknown mode, and for a rule that does not have
    /// exactly one period within the limits.
    pub fn configuration(&self) -> Option<LockConfiguration> {
        if !self.has_rule {
            return Some(LockConfiguration::default());
        }
        let period = match (self.days, self.years) {
            (Some(days), None) => RetentionPeriod::Days(u32::try_from(days).ok()?),
            (None, Some(years)) => RetentionPeriod::Years(u32::try_from(years).ok()?),
            _ => return None,
        };
        period.check().ok()?;
        let mode = RetentionMode::from_name(self.mode.as_deref()?)?;
        Some(LockConfiguration { default: Some(DefaultRetention { mode, period }) })
    }
}

/// Returns the document of a bucket's configuration.
pub fn lock_configuration(configuration: &LockConfiguration) -> String {
    let mut document = ResponseDocumentBuilder::new("ObjectLockConfiguration");
    document.element("ObjectLockEnabled", "Enabled");
    if let Some(DefaultRetention { mode, period }) = configuration.default {
        document.open("Rule").open("DefaultRetention").element("Mode", mode.name());
        match period {
            RetentionPeriod::Days(days) => document.element("Days", &days.to_string()),
            RetentionPeriod::Years(years) => document.element("Years", &years.to_string()),
        };
        document.close().close();
    }
    document.finish()
}

/// Reads the document of a retention; `None` for a document without content, which removes a retention. Errors:
/// `BadResponse` unless the retention has a mode and a date.
pub fn retention(document: &[u8]) -> Result<Option<Retention>> {
    let (mut mode, mut until) = (None, None);
    for_each_element(document, "Retention", |path, text| {
        match path {
            "Mode" => mode = Some(text.trim().to_owned()),
            "RetainUntilDate" => until = Some(text.trim().to_owned()),
            _ => {}
        }
        Ok(())
    })?;
    match (mode, until) {
        (None, None) => Ok(None),
        (Some(mode), Some(until)) => stated_retention(&mode, &until).map(Some),
        _ => Err(bad("a retention needs a mode and a date")),
    }
}

/// Returns the retention with this mode and this date (ISO 8601). Errors: `BadResponse`.
pub fn stated_retention(mode: &str, until: &str) -> Result<Retention> {
    let mode = RetentionMode::from_name(mode);
    let mode = mode.ok_or_else(|| bad("the mode of a retention must be GOVERNANCE or COMPLIANCE"))?;
    let until = parse_iso8601(until);
    let until =
        until.ok_or_else(|| bad("the date of a retention must have the form 2030-01-31T12:00:00Z"))?;
    Ok(Retention { mode, until_ms: ms_since_1970(until) })
}

/// Returns the document of a retention.
pub fn retention_document(retention: Option<Retention>) -> String {
    let mut document = ResponseDocumentBuilder::new("Retention");
    if let Some(retention) = retention {
        document.element("Mode", retention.mode.name());
        document.element("RetainUntilDate", &format_iso8601(retention.until()));
    }
    document.finish()
}

/// Reads the document of a legal hold, which may have the root `LegalHold` or `ObjectLockLegalHold`. Errors:
/// `BadResponse` unless the status is `ON` or `OFF`.
pub fn legal_hold(document: &[u8]) -> Result<bool> {
    let mut status = None;
    for_each_element(document, "", |path, text| {
        if path == "Status" {
            status = legal_hold_status(text.trim());
        }
        Ok(())
    })?;
    status.ok_or_else(|| bad("the status of a legal hold must be ON or OFF"))
}

/// Returns true for the status `ON`, false for `OFF`, and `None` for any other string.
pub fn legal_hold_status(text: &str) -> Option<bool> {
    match text {
        "ON" => Some(true),
        "OFF" => Some(false),
        _ => None,
    }
}

/// Returns the status of a legal hold: `ON` or `OFF`.
pub fn legal_hold_name(is_on: bool) -> &'static str {
    if is_on { "ON" } else { "OFF" }
}

/// Returns the document of a legal hold.
pub fn legal_hold_document(is_on: bool) -> String {
    let mut document = ResponseDocumentBuilder::new("LegalHold");
    document.element("Status", legal_hold_name(is_on));
    document.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_round_trip() {
        for default in [
            None,
            Some((RetentionMode::Governance, RetentionPeriod::Days(30))),
            Some((RetentionMode::Compliance, RetentionPeriod::Years(2))),
        ] {
            let default = default.map(|(mode, period)| DefaultRetention { mode, period });
            let configuration = LockConfiguration { default };
            let read = ObjectLockDocument::read(lock_configuration(&configuration).as_bytes()).unwrap();
            assert_eq!(read.state.as_deref(), Some("Enabled"));
            assert_eq!(read.configuration(), Some(configuration));
        }
        for rule in [
            "<Mode>GOVERNANCE</Mode><Days>1</Days><Years>1</Years>",
            "<Mode>GOVERNANCE</Mode>",
            "<Mode>governance</Mode><Days>1</Days>",
            "<Mode>COMPLIANCE</Mode><Days>0</Days>",
            "<Mode>COMPLIANCE</Mode><Years>-1</Years>",
            "<Days>1</Days>",
        ] {
            let document = format!(
                "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule>\
                 <DefaultRetention>{rule}</DefaultRetention></Rule></ObjectLockConfiguration>"
            );
            assert_eq!(
                ObjectLockDocument::read(document.as_bytes()).unwrap().configuration(),
                None,
                "{rule}"
            );
        }
    }

    #[test]
    fn retentions_and_holds_round_trip() {
        let until = Retention { mode: RetentionMode::Compliance, until_ms: 1_900_000_000_123 };
        for given in [None, Some(until)] {
            assert_eq!(retention(retention_document(given).as_bytes()).unwrap(), given);
        }
        for is_on in [true, false] {
            assert_eq!(legal_hold(legal_hold_document(is_on).as_bytes()).unwrap(), is_on);
        }
        assert!(retention(b"<Retention><Mode>GOVERNANCE</Mode></Retention>").is_err());
        assert!(stated_retention("GOVERNANCE", "tomorrow").is_err());
        assert!(legal_hold(b"<LegalHold><Status>on</Status></LegalHold>").is_err());
    }
}

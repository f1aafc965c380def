//! AWS's query protocol: a request is a form with an `Action`, and a response is an XML document.

use std::borrow::Cow;
use std::fmt::Write as _;

use fordway_wire::s3_xml::escaped;
use http::StatusCode;
use percent_encoding::percent_decode_str;

/// The namespace of all documents, which contains the version of the protocol.
const NAMESPACE: &str = "https://sts.amazonaws.com/doc/2011-06-15/";
pub(super) const VERSION: &str = "2011-06-15";

/// The maximum number of parameters of a request, which is more than any action of AWS has. Parameters are compared
/// before the request is authenticated. Without this limit, anyone could make these comparisons take a long time.
const PARAMETERS_MAX: usize = 200;

/// The parameters of a request. An action removes the parameters that it uses. A request with remaining parameters is
/// refused.
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Reads a form. Errors: `ValidationError` for a form that is not UTF-8, has too many parameters, or has a
    /// parameter twice.
    pub(super) fn read(body: &[u8]) -> Result<Self, StsFailure> {
        let wrong = |why: &str| StsFailure::validation(why);
        let text = std::str::from_utf8(body).map_err(|_| wrong("the form is not UTF-8"))?;
        let mut parameters: Vec<(String, String)> = Vec::new();
        for pair in text.trim_end().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let both = decoded(name).zip(decoded(value));
            let (name, value) = both.ok_or_else(|| wrong("the form is not UTF-8 when decoded"))?;
            if parameters.len() == PARAMETERS_MAX {
                return Err(wrong(&format!("the form has more than {PARAMETERS_MAX} parameters")));
            }
            if parameters.iter().any(|(known, _)| *known == name) {
                return Err(wrong(&format!("the parameter {} appears twice", shown(&name))));
            }
            parameters.push((name, value));
        }
        Ok(Parameters(parameters))
    }

    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Removes and returns a parameter that must be present. Errors: `ValidationError`.
    pub(super) fn required(&mut self, name: &str) -> Result<String, StsFailure> {
        self.take(name).ok_or_else(|| {
            let member = with_small_start(name);
            let why =
                format!("Value null at '{member}' failed to satisfy constraint: Member must not be null");
            StsFailure::constraint(&why)
        })
    }

    /// Removes and returns the lifetime of the credentials, in seconds. `default` applies if the request specifies no
    /// lifetime. Errors: `ValidationError` for a lifetime outside AWS's limits.
    pub(super) fn duration_s(&mut self, default: u64, (least, most): (u64, u64)) -> Result<u64, StsFailure> {
        let Some(text) = self.take("DurationSeconds") else { return Ok(default.min(most)) };
        let seconds: u64 =
            text.parse().map_err(|_| StsFailure::validation("DurationSeconds is not a number of seconds"))?;
        let (bound, limit) = match seconds {
            _ if seconds < least => ("greater", least),
            _ if seconds > most => ("less", most),
            _ => return Ok(seconds),
        };
        Err(StsFailure::constraint(&format!(
            "Value '{seconds}' at 'durationSeconds' failed to satisfy constraint: Member must have value {bound} than or \
             equal to {limit}"
        )))
    }

    /// Checks that no parameters remain. Ignoring a parameter, such as a session policy, could give the caller more
    /// rights than the request intended. Errors: `ValidationError`.
    pub(super) fn check_all_taken(&self) -> Result<(), StsFailure> {
        let Some((name, _)) = self.0.first() else { return Ok(()) };
        let why = UNSUPPORTED.iter().find(|(start, _)| name.starts_with(start)).map_or("", |(_, why)| why);
        Err(StsFailure::validation(&format!("{} is not supported here{why}; omit it", shown(name))))
    }
}

/// AWS's parameters that are refused. Each entry contains the start of a parameter's name, and the reason.
const UNSUPPORTED: [(&str, &str); 7] = [
    ("Policy", ", because sessions have all permissions of their role or user"),
    ("Tags.", ", because sessions have no tags"),
    ("TransitiveTagKeys.", ", because sessions have no tags"),
    ("SourceIdentity", ", because neither tokens nor policies contain it"),
    ("ProviderId", ", because it is not for OIDC tokens, which name their issuer"),
    ("SerialNumber", ", because the gateway has no multi-factor authentication"),
    ("TokenCode", ", because the gateway has no multi-factor authentication"),
];

fn decoded(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8().ok().map(Cow::into_owned)
}

fn with_small_start(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
}

/// Escapes and shortens text from the client, for use in a response.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_default).collect()
}

/// Returns a response document. `elements` contains the XML elements of the result.
pub(super) fn document(action: &str, elements: &str, request_id: &str) -> String {
    format!(
        "<{action}Response xmlns=\"{NAMESPACE}\"><{action}Result>{elements}</{action}Result>\
         <ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>"
    )
}

/// Returns XML elements with the names and contents in `all`.
pub(super) fn elements(all: &[(&str, &str)]) -> String {
    all.iter().fold(String::new(), |mut xml, (name, text)| {
        // Writing to a string always succeeds.
        let _ = write!(xml, "<{name}>{}</{name}>", escaped(text));
        xml
    })
}

/// The reason why a request to the token service failed.
#[derive(Debug)]
pub(super) struct StsFailure {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    message: String,
}

impl StsFailure {
    pub(super) fn bad(code: &'static str, message: impl Into<String>) -> Self {
        StsFailure { status: StatusCode::BAD_REQUEST, code, message: message.into() }
    }

    pub(super) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        StsFailure { status: StatusCode::FORBIDDEN, code, message: message.into() }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        let (status, code) = (StatusCode::INTERNAL_SERVER_ERROR, "InternalFailure");
        StsFailure { status, code, message: message.into() }
    }

    pub(super) fn validation(message: &str) -> Self {
        StsFailure::bad("ValidationError", message)
    }

    /// Returns AWS's error for a parameter that does not satisfy a constraint.
    pub(super) fn constraint(what: &str) -> Self {
        StsFailure::validation(&format!("1 validation error detected: {what}"))
    }

    pub(super) fn document(&self, request_id: &str) -> String {
        let fault = if self.status.is_server_error() { "Receiver" } else { "Sender" };
        let error = elements(&[("Type", fault), ("Code", self.code), ("Message", &self.message)]);
        format!(
            "<ErrorResponse xmlns=\"{NAMESPACE}\"><Error>{error}</Error><RequestId>{request_id}</RequestId></ErrorResponse>"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_read_once_and_whole() {
        let mut read = Parameters::read(b"Action=Get&A=b+c%2B%C3%BC&Empty").unwrap();
        assert_eq!(read.take("A").as_deref(), Some("b c+\u{fc}"));
        assert_eq!(read.take("A"), None);
        assert_eq!(read.take("Empty").as_deref(), Some(""));
        assert!(read.check_all_taken().is_err());
        assert_eq!(read.take("Action").as_deref(), Some("Get"));
        read.check_all_taken().unwrap();
        let long: String = (0..=PARAMETERS_MAX).map(|at| format!("a{at}&")).collect();
        for bad in [&b"A=1&A=2"[..], b"A=%ff", b"\xff", b"A=1&%41=2", long.as_bytes()] {
            assert_eq!(Parameters::read(bad).err().map(|failure| failure.code), Some("ValidationError"));
        }
    }

    #[test]
    fn lifetimes_have_limits() {
        let of = |text: &str| Parameters::read(text.as_bytes()).unwrap().duration_s(3600, (900, 7200));
        assert_eq!(of("").unwrap(), 3600);
        assert_eq!(of("DurationSeconds=900").unwrap(), 900);
        assert_eq!(of("DurationSeconds=7200").unwrap(), 7200);
        for bad in ["899", "7201", "-1", "", "1e3", "99999999999999999999"] {
            assert!(of(&format!("DurationSeconds={bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn texts_of_clients_are_escaped() {
        let failure = StsFailure::validation("<a>&");
        assert!(failure.document("id").contains("<Message>&lt;a&gt;&amp;</Message>"));
    }
}

//! Why a request did not succeed, until it becomes a number and a message.

use fordway_store::Error;

use crate::abi::{Abi, StatusNumber};
use crate::status::Status;

/// A request's failure.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store's.
    Store(Error),
    /// The store's, where a service would have answered without a body.
    Head(Error),
    /// This library's, with what to do about it.
    Refused(Status, String),
    /// A callback's, in the caller's numbering.
    Callback(StatusNumber),
}

/// How a request ended.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// An argument or operation that is refused; `why` is a sentence that says what to do instead.
    pub(crate) fn refused(status: Status, why: impl Into<String>) -> Self {
        Failure::Refused(status, why.into())
    }

    pub(crate) fn number(&self, abi: Abi) -> StatusNumber {
        match self {
            Failure::Store(error) => abi.number(error.kind().into()),
            Failure::Head(error) => abi.number(Status::from(error.kind()).without_body()),
            Failure::Refused(status, _) => abi.number(*status),
            Failure::Callback(number) => *number,
        }
    }

    /// The sentence for a person.
    pub(crate) fn message(&self) -> String {
        match self {
            Failure::Store(error) | Failure::Head(error) => error.to_string(),
            Failure::Refused(_, why) => why.clone(),
            Failure::Callback(number) => format!("a callback of the program answered with status {number}"),
        }
    }

    /// The address of what it failed on, or empty.
    pub(crate) fn resource(&self) -> &str {
        match self {
            Failure::Store(error) | Failure::Head(error) => error.target(),
            Failure::Refused(..) | Failure::Callback(_) => "",
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Store(error)
    }
}

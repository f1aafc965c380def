//! Entry points for fuzzing the parsers of the AWS configuration (`dev/fuzz`).

pub use crate::s3::fuzzing::aws_config;

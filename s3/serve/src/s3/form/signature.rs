//! The signature of a form's policy, in Signature Version 4 or 2. The signature covers only the policy, and the policy
//! restricts the form.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fordway_wire::date::parse_amz_date;
use fordway_wire::sigv4::SigningKey;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::StatusCode;

use crate::access::signature_age_ms;
use crate::gate::GateRefusal;
use crate::message::composed;
use crate::s3::error::{OperationResult, S3Failure};
use crate::s3::form::fields::FormFields;
use crate::signature::{self, check_credential};
use crate::sts::StsSession;
use crate::users::{User, Users};

/// The fields of a version 4 signature, in AWS's order.
const VERSION_4: [&str; 5] =
    ["policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"];
/// The fields of a version 2 signature.
const VERSION_2: [&str; 3] = ["policy", "awsaccesskeyid", "signature"];

/// A well-formed signature that has not been verified yet.
#[derive(Debug)]
pub(super) struct FormSignature<'f> {
    policy: &'f str,
    access_key: &'f str,
    signature: &'f str,
    /// The credential of a version 4 signature: the key and its scope.
    credential: Option<&'f str>,
    /// The date of a version 4 signature.
    date: Option<&'f str>,
}

impl<'f> FormSignature<'f> {
    /// Reads the signature of a form; returns `None` if the form has no signature fields. Errors: `InvalidArgument` for
    /// a field that is missing or invalid; `InvalidRequest` for a version 2 signature if the gateway does not accept
    /// such signatures.
    pub(super) fn read(form: &'f FormFields, allows_version_2: bool) -> OperationResult<Option<Self>> {
        if VERSION_4[1..].iter().any(|name| form.get(name).is_some()) {
            return FormSignature::read_version_4(form).map(Some);
        }
        if VERSION_2[1..].iter().all(|name| form.get(name).is_none()) {
            return match form.get("policy") {
                None => Ok(None),
                Some(_) => FormSignature::read_version_4(form).map(Some),
            };
        }
        if !allows_version_2 {
            let GateRefusal { code, status, message } = signature::version_2_refused();
            return Err(S3Failure::new(code, status, message));
        }
        let [policy, access_key, signature] = VERSION_2.map(|name| form.required(name));
        let (policy, access_key, signature) = (policy?, access_key?, signature?);
        Ok(Some(FormSignature { policy, access_key, signature, credential: None, date: None }))
    }

    fn read_version_4(form: &'f FormFields) -> OperationResult<Self> {
        let [policy, algorithm, credential, date, signature] = VERSION_4.map(|name| form.required(name));
        let (policy, algorithm, credential) = (policy?, algorithm?, credential?);
        let (date, signature) = (date?, signature?);
        if algorithm != signature::ALGORITHM {
            let words = "Only AWS4-HMAC-SHA256 is supported";
            return Err(S3Failure::argument(words, "X-Amz-Algorithm", algorithm));
        }
        if parse_amz_date(date).is_none() {
            let words = "X-Amz-Date must be formated via ISO8601 Long format";
            return Err(S3Failure::argument(words, "X-Amz-Date", date));
        }
        let access_key = credential.split('/').next().unwrap_or_default();
        Ok(FormSignature { policy, access_key, signature, credential: Some(credential), date: Some(date) })
    }

    /// Returns the values of the condition keys about the signature.
    pub(super) fn condition_keys(&self) -> Vec<(&'static str, String)> {
        let version = if self.credential.is_some() { signature::ALGORITHM } else { "AWS" };
        // As on AWS, a version 2 signature has no age.
        let age = self.date.map_or_else(|| Some("0".to_owned()), signature_age_ms);
        let age = age.map(|age| ("s3:signatureage", age));
        let keys = [("s3:authtype", "POST".to_owned()), ("s3:signatureversion", version.to_owned())];
        keys.into_iter().chain(age).collect()
    }

    /// Returns the user who signed the form. Errors: `InvalidArgument` for a malformed credential;
    /// `InvalidAccessKeyId`, `SignatureDoesNotMatch`.
    pub(super) fn signer(
        &self,
        users: &Users,
        session: Option<&StsSession>,
        region: &str,
    ) -> OperationResult<Arc<User>> {
        if let Some(credential) = self.credential {
            check_credential(credential, None, region)
                .map_err(|error| S3Failure::argument(&error.words, "x-amz-credential", credential))?;
        }
        if let Some(session) = session {
            return self.signer_in_session(session);
        }
        let user = users.find(self.access_key);
        let keys = user.as_ref().and_then(|user| user.keys.as_ref());
        let (Some(user), Some(keys)) = (&user, keys) else { return Err(unknown_key(self.access_key)) };
        match self.is_of(&keys.secret_key) {
            true => Ok(user.clone()),
            false => Err(self.mismatch()),
        }
    }

    /// Returns the user of the session whose token is in the form. Errors: as for a signature with long-term keys;
    /// `InvalidToken` for a token that belongs to another access key.
    fn signer_in_session(&self, session: &StsSession) -> OperationResult<Arc<User>> {
        if self.credential.is_none() || session.access_key != self.access_key {
            let words = "The provided token is malformed or otherwise invalid.";
            let detail = "the token belongs to another access key, or the signature is not of version 4";
            return Err(S3Failure::aws("InvalidToken", StatusCode::BAD_REQUEST, words, detail));
        }
        match self.is_of(&session.secret_key) {
            true => Ok(session.user.clone()),
            false => Err(self.mismatch()),
        }
    }

    fn is_of(&self, secret_key: &str) -> bool {
        let Some(credential) = self.credential else {
            // `new_from_slice` never fails for HMAC, because an HMAC key may have any length.
            let mac = Hmac::<sha1::Sha1>::new_from_slice(secret_key.as_bytes());
            let stated = STANDARD.decode(self.signature).unwrap_or_default();
            return mac.is_ok_and(|mac| mac.chain_update(self.policy).verify_slice(&stated).is_ok());
        };
        let mut scope = credential.split('/').skip(1);
        let [day, region, service] = std::array::from_fn(|_| scope.next().unwrap_or_default());
        SigningKey::for_day(secret_key, day, region, service).has_signed(self.policy, self.signature)
    }

    /// Returns the error for a wrong signature. The error contains the string to sign, which is the policy.
    fn mismatch(&self) -> S3Failure {
        let words = "The request signature we calculated does not match the signature you provided. Check your key \
                     and signing method.";
        let bytes: Vec<_> = self.policy.bytes().map(|byte| format!("{byte:02x}")).collect();
        let bytes = bytes.join(" ");
        let facts = [
            ("AWSAccessKeyId", self.access_key),
            ("StringToSign", self.policy),
            ("SignatureProvided", self.signature),
            ("StringToSignBytes", &bytes),
        ];
        let detail = "sign the policy in base64, exactly as it is in the form";
        S3Failure::new("SignatureDoesNotMatch", StatusCode::FORBIDDEN, composed(words, detail, &facts))
    }
}

fn unknown_key(access_key: &str) -> S3Failure {
    let words = "The AWS Access Key Id you provided does not exist in our records.";
    let facts = [("AWSAccessKeyId", access_key)];
    let text = composed(words, "the access key is unknown; check it", &facts);
    S3Failure::new("InvalidAccessKeyId", StatusCode::FORBIDDEN, text)
}

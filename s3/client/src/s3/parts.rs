//! The parts that an object was completed of.

use fordway_store::{Bucket, Error, ErrorKind, GetOptions, Key, ObjectPart, Result};
use fordway_wire::range::digits;
use fordway_wire::s3_xml::{self, AttributesPage};

use super::read;
use super::request::Call;
use super::session::Session;
use super::store::head;

/// All parts, by number from 1 on, whatever numbers they were uploaded under.
pub(super) fn object_parts(
    session: &Session,
    target: (&Bucket, &Key),
    options: &GetOptions,
) -> Result<Vec<ObjectPart>> {
    if !options.conditions.is_empty() {
        // The request for the parts knows no conditions.
        head(session, target, options)?;
    }
    let (mut parts, mut after) = (Vec::new(), None);
    loop {
        let AttributesPage { parts: page, total, next } = page(session, target, options, after)?;
        if page.is_empty() && parts.len() < usize::from(total) {
            return (1..=total).map(|number| one(session, target, options, number)).collect();
        }
        parts.extend(page);
        if next.is_some() && next <= after {
            let detail = "the service sends the list of parts back to where it was; report it to who runs it";
            return Err(Error::new(ErrorKind::BadResponse, detail));
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    Ok((1..).zip(parts).map(|(number, part)| ObjectPart { number, ..part }).collect())
}

fn page(
    session: &Session,
    (bucket, key): (&Bucket, &Key),
    options: &GetOptions,
    after: Option<u16>,
) -> Result<AttributesPage> {
    let mut call = Call::on_object("GET", "get parts", bucket, key)
        .query("attributes", "")
        .version(options.version.as_ref());
    call.header("x-amz-object-attributes", "ObjectParts");
    if let Some(after) = after {
        call.header("x-amz-part-number-marker", after.to_string());
    }
    let document = session.run_for_document(&call)?;
    s3_xml::object_attributes(&document).map_err(|error| call.named(error))
}

/// A part that the service does not list.
fn one(session: &Session, target: (&Bucket, &Key), options: &GetOptions, number: u16) -> Result<ObjectPart> {
    let plain = GetOptions { version: options.version.clone(), ..Default::default() };
    let call =
        read::call(session, "HEAD", "get parts", target, &plain).query("partNumber", number.to_string());
    session.run(&call, |response| {
        let size = response.header("content-length").and_then(digits);
        let missing = || Error::new(ErrorKind::BadResponse, format!("part {number} came without a length"));
        Ok(ObjectPart { number, size: size.ok_or_else(missing)?, checksum: None })
    })
}

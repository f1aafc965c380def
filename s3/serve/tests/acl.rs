//! Tests the ACLs of buckets: who may set an ACL, and what each ACL allows.

mod client;

use std::net::SocketAddr;
use std::sync::Arc;

use client::{Answer, BUCKET, Call, Fixture};
use fordway_serve::{AccessKeyPair, AnonymousUser, Gateway, GatewayConfig, Users};
use fordway_store::{MemoryStore, Objects};

/// Starts a gateway that serves anonymous requests if the rules of the bucket permit them.
fn open_to_all() -> Fixture {
    let store = MemoryStore::default();
    store.create_bucket(&client::bucket()).unwrap();
    let identity = AccessKeyPair::generate().unwrap();
    let users = Users::one(identity.clone(), Arc::new(store.clone()));
    let users = users.with_anonymous(AnonymousUser { name: "nobody".to_owned(), acts_as: None }).unwrap();
    let config = GatewayConfig { threads: 1, ..GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0))) };
    let gateway = Gateway::bind(users, config).unwrap().spawn().unwrap();
    let client =
        client::Client { address: gateway.local_addr(), identity, clock_offset_s: 0, dates_by_date: false };
    Fixture { store, client, gateway }
}

fn on_bucket<'q>(method: &'q str, query: &'q str) -> Call<'q> {
    Call::new(method, format!("/{BUCKET}")).query(query)
}

fn ownership(fixture: &Fixture, setting: &str) -> Answer {
    let rule = format!("<Rule><ObjectOwnership>{setting}</ObjectOwnership></Rule>");
    let document = format!("<OwnershipControls>{rule}</OwnershipControls>");
    fixture.client.send(&on_bucket("PUT", "ownershipControls").body(document))
}

fn put_acl(fixture: &Fixture, name: &str) -> Answer {
    fixture.client.send(&on_bucket("PUT", "acl").header("x-amz-acl", name))
}

/// Returns the grants of the bucket. Each grant consists of the group (empty for the owner) and the permission.
fn grants(fixture: &Fixture) -> Vec<(String, String)> {
    let text = fixture.client.send(&on_bucket("GET", "acl")).ok().text();
    let between = |text: &str, name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once('<').map(|(value, _)| value.to_owned())
    };
    let grants = text.split("<Grant>").skip(1);
    grants
        .map(|grant| {
            let uri = between(grant, "URI").unwrap_or_default();
            let group = uri.rsplit('/').next().unwrap_or_default().to_owned();
            (group, between(grant, "Permission").unwrap())
        })
        .collect()
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(group, permission)| ((*group).to_owned(), (*permission).to_owned())).collect()
}

/// Sends an anonymous request and returns the status.
fn anonymous(fixture: &Fixture, method: &str, target: &str, body: &str) -> u16 {
    let length = body.len();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    fixture.client.send_raw(method, &(head + body)).status
}

fn list(fixture: &Fixture) -> u16 {
    anonymous(fixture, "GET", &format!("/{BUCKET}"), "")
}

fn upload(fixture: &Fixture) -> u16 {
    anonymous(fixture, "PUT", &format!("/{BUCKET}/new"), "hello")
}

fn code(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[test]
fn buckets_have_no_acls_by_default() {
    let fixture = open_to_all();
    let refused = code(400, "AccessControlListNotSupported");
    for name in ["public-read", "private", "bucket-owner-full-control"] {
        assert_eq!(put_acl(&fixture, name).error(), refused, "{name}");
    }
    let grant = on_bucket("PUT", "acl").header("x-amz-grant-read", "id=x");
    assert_eq!(fixture.client.send(&grant).error(), refused);
    ownership(&fixture, "BucketOwnerEnforced").ok();
    assert_eq!(put_acl(&fixture, "public-read").error(), refused);
    assert_eq!(grants(&fixture), pairs(&[("", "FULL_CONTROL")]));
    assert_eq!(list(&fixture), 403);
}

#[test]
fn acls_open_buckets_to_everybody() {
    let fixture = open_to_all();
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    ownership(&fixture, "BucketOwnerPreferred").ok();
    let owner = ("", "FULL_CONTROL");
    let (all, known) = ("AllUsers", "AuthenticatedUsers");
    for (name, found, of_list, of_upload) in [
        ("public-read", &[owner, (all, "READ")][..], 200, 403),
        ("public-read-write", &[owner, (all, "READ"), (all, "WRITE")], 200, 200),
        ("authenticated-read", &[owner, (known, "READ")], 403, 403),
        ("private", &[owner], 403, 403),
    ] {
        put_acl(&fixture, name).ok();
        assert_eq!(grants(&fixture), pairs(found), "{name}");
        assert_eq!(list(&fixture), of_list, "{name}");
        assert_eq!(upload(&fixture), of_upload, "{name}");
        // The ACL of a bucket does not allow reading objects. Only a caller who may list the bucket gets 404 for a
        // missing object.
        assert_eq!(anonymous(&fixture, "GET", &format!("/{BUCKET}/k"), ""), 403, "{name}");
        let missing = anonymous(&fixture, "GET", &format!("/{BUCKET}/none"), "");
        assert_eq!(missing, if of_list == 200 { 404 } else { 403 }, "{name}");
        assert_eq!(anonymous(&fixture, "DELETE", &format!("/{BUCKET}/k"), ""), 403, "{name}");
        assert_eq!(anonymous(&fixture, "PUT", &format!("/{BUCKET}?acl"), ""), 403, "{name}");
    }
}

#[test]
fn denials_and_blocks_come_before_acls() {
    let fixture = open_to_all();
    ownership(&fixture, "ObjectWriter").ok();
    put_acl(&fixture, "public-read").ok();
    let policy = |effect: &str| {
        let arn = format!("arn:aws:s3:::{BUCKET}");
        let document = format!(
            "{{\"Version\":\"2012-10-17\",\"Statement\":{{\"Effect\":\"{effect}\",\"Principal\":\"*\",\
             \"Action\":\"s3:ListBucketMultipartUploads\",\"Resource\":\"{arn}\"}}}}"
        );
        assert_eq!(fixture.client.send(&on_bucket("PUT", "policy").body(document)).status, 204);
    };
    let uploads = || anonymous(&fixture, "GET", &format!("/{BUCKET}?uploads"), "");
    assert_eq!((list(&fixture), uploads()), (200, 200));
    policy("Deny");
    assert_eq!((list(&fixture), uploads()), (200, 403));
    fixture.client.send(&on_bucket("DELETE", "policy"));
    let block = |setting: &str| {
        let document = format!(
            "<PublicAccessBlockConfiguration><{setting}>true</{setting}></PublicAccessBlockConfiguration>"
        );
        fixture.client.send(&on_bucket("PUT", "publicAccessBlock").body(document)).ok();
    };
    block("IgnorePublicAcls");
    assert_eq!((list(&fixture), uploads()), (403, 403));
    block("BlockPublicAcls");
    assert_eq!(list(&fixture), 200, "a block of new ACLs does not concern the present one");
    for name in ["public-read-write", "authenticated-read"] {
        assert_eq!(put_acl(&fixture, name).error(), code(403, "AccessDenied"), "{name}");
    }
    put_acl(&fixture, "private").ok();
    assert_eq!(list(&fixture), 403);
}

/// The owner keeps full control with every ACL. As long as an ACL grants access, ACLs cannot be disabled.
#[test]
fn ownership_controls_enable_acls() {
    let fixture = open_to_all();
    ownership(&fixture, "BucketOwnerPreferred").ok();
    put_acl(&fixture, "public-read").ok();
    let refused = code(400, "InvalidBucketAclWithObjectOwnership");
    assert_eq!(ownership(&fixture, "BucketOwnerEnforced").error(), refused);
    let remove = || fixture.client.send(&on_bucket("DELETE", "ownershipControls"));
    assert_eq!(remove().error(), refused);
    ownership(&fixture, "ObjectWriter").ok();
    assert_eq!(list(&fixture), 200);
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    put_acl(&fixture, "private").ok();
    fixture.client.send(&Call::on("GET", "k")).ok();
    assert_eq!(remove().status, 204);
    assert_eq!(put_acl(&fixture, "public-read").error(), code(400, "AccessControlListNotSupported"));
}

#[test]
fn grants_are_taken_from_a_document() {
    let fixture = open_to_all();
    ownership(&fixture, "BucketOwnerPreferred").ok();
    let put = |grants: &[&str]| {
        let document = format!(
            "<AccessControlPolicy><Owner><ID>x</ID></Owner><AccessControlList>{}</AccessControlList>\
             </AccessControlPolicy>",
            grants.concat()
        );
        fixture.client.send(&on_bucket("PUT", "acl").body(document))
    };
    let grant = |grantee: &str, permission: &str| {
        format!(
            "<Grant><Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"x\">{grantee}</Grantee>\
             <Permission>{permission}</Permission></Grant>"
        )
    };
    let all = "<URI>http://acs.amazonaws.com/groups/global/AllUsers</URI>";
    let read = fixture.client.send(&on_bucket("GET", "acl")).ok();
    let owner = grant(&format!("<ID>{}</ID>", read.element("ID").unwrap()), "FULL_CONTROL");
    put(&[&owner, &grant(all, "READ")]).ok();
    assert_eq!(grants(&fixture), pairs(&[("", "FULL_CONTROL"), ("AllUsers", "READ")]));
    // A program that adds a grant sends back the document that it has read.
    let text = fixture.client.send(&on_bucket("GET", "acl")).ok().text();
    let more = text.replace("</AccessControlList>", &format!("{}</AccessControlList>", grant(all, "WRITE")));
    fixture.client.send(&on_bucket("PUT", "acl").body(more)).ok();
    assert_eq!(upload(&fixture), 200);
    let unsupported = code(501, "NotImplemented");
    for refused in [
        grant("<ID>another</ID>", "READ"),
        grant("<EmailAddress>a@example.org</EmailAddress>", "READ"),
        grant(all, "READ_ACP"),
        grant(all, "FULL_CONTROL"),
        grant(all, "WRITE"),
        grant("<URI>http://acs.amazonaws.com/groups/s3/LogDelivery</URI>", "READ"),
    ] {
        assert_eq!(put(&[&owner, &refused]).error(), unsupported, "{refused}");
    }
    let header =
        |name, value: &str| fixture.client.send(&on_bucket("PUT", "acl").header(name, value)).error();
    assert_eq!(header("x-amz-grant-read", "id=another"), unsupported);
    assert_eq!(header("x-amz-acl", "log-delivery-write"), unsupported);
    assert_eq!(header("x-amz-acl", "nonesuch"), code(400, "InvalidArgument"));
    assert_eq!(fixture.client.send(&on_bucket("PUT", "acl")).error(), code(400, "MissingSecurityHeader"));
    let both = on_bucket("PUT", "acl").header("x-amz-acl", "private").body("<AccessControlPolicy/>");
    assert_eq!(fixture.client.send(&both).error(), code(400, "UnexpectedContent"));
    assert_eq!(upload(&fixture), 200, "a refused request changes nothing");
    put(&[]).ok();
    assert_eq!(grants(&fixture), pairs(&[("", "FULL_CONTROL")]));
}

#[test]
fn a_new_bucket_states_its_acl_with_its_ownership() {
    let fixture = open_to_all();
    let create = |name: &str, ownership: &str, header: &'static str, value: &str| {
        let call = Call::new("PUT", format!("/{name}")).header(header, value);
        let call = if ownership.is_empty() { call } else { call.header("x-amz-object-ownership", ownership) };
        fixture.client.send(&call)
    };
    let refused = code(400, "InvalidBucketAclWithObjectOwnership");
    for ownership in ["", "BucketOwnerEnforced"] {
        assert_eq!(create("closed", ownership, "x-amz-acl", "public-read").error(), refused, "{ownership}");
    }
    assert_eq!(create("closed", "", "x-amz-grant-read", "id=x").error(), refused);
    let unsupported = code(501, "NotImplemented");
    assert_eq!(create("closed", "ObjectWriter", "x-amz-grant-read", "id=x").error(), unsupported);
    assert_eq!(create("closed", "ObjectWriter", "x-amz-acl", "aws-exec-read").error(), unsupported);
    assert_eq!(
        create("closed", "ObjectWriter", "x-amz-acl", "nonesuch").error(),
        code(400, "InvalidArgument")
    );
    assert_eq!(fixture.client.send(&Call::new("HEAD", "/closed")).status, 404);
    create("opened", "ObjectWriter", "x-amz-acl", "public-read").ok();
    assert_eq!(anonymous(&fixture, "GET", "/opened", ""), 200);
    create("plain", "", "x-amz-acl", "private").ok();
    assert_eq!(anonymous(&fixture, "GET", "/plain", ""), 403);
}

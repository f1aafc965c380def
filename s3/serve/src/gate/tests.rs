//! Tests that requests map to the right operations, and that invalid requests are refused.

use crate::gate::*;

fn asked(request: http::request::Builder) -> Result<&'static OperationRule, GateRefusal> {
    let domains = BucketDomains::new(&["s3.example".to_owned()]).unwrap();
    let mut request = request.body(()).unwrap();
    request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    admit(&mut request, &domains)
}

fn plain(method: &str, target: &str) -> Result<&'static str, u16> {
    let found = asked(Request::builder().method(method).uri(target));
    found.map(|operation| operation.name).map_err(|refusal| refusal.status.as_u16())
}

/// Anyone who has a URL with a version 2 signature could add a parameter that the signature does not cover.
#[test]
fn a_version_2_url_selects_no_operation_that_it_does_not_sign() {
    let signed = "AWSAccessKeyId=a&Expires=1&Signature=s";
    for (method, target) in
        [("PUT", "/b/k?retention"), ("PUT", "/b/k?legal-hold"), ("GET", "/b/k?attributes")]
    {
        assert!(plain(method, target).is_ok(), "{target}");
        assert_eq!(plain(method, &format!("{target}&{signed}")), Err(403), "{target}");
    }
    for (method, target) in
        [("PUT", "/b/k?"), ("GET", "/b?list-type=2&"), ("PUT", "/b/k?tagging&"), ("GET", "/b?website&")]
    {
        assert!(plain(method, &format!("{target}{signed}")).is_ok(), "{target}");
    }
}

/// By default, boto3 signs URLs with Signature Version 2, so the error must name the setting for Version 4.
#[test]
fn a_version_2_url_with_a_session_token_learns_what_to_change() {
    let url = "/b/k?AWSAccessKeyId=a&Signature=s&x-amz-security-token=t&Expires=1";
    let refusal = asked(Request::builder().uri(url)).err().unwrap();
    assert_eq!((refusal.status.as_u16(), refusal.code), (400, "InvalidRequest"));
    assert!(refusal.message.contains("s3v4"), "{}", refusal.message);
}

/// Comparing thousands of names with each other would take a long time, and the sender is not authenticated yet. The
/// number of parameters is therefore limited.
#[test]
fn a_query_has_a_hundred_parameters_at_most() {
    let query = |count: usize| (0..count).map(|at| format!("x-{at}=&")).collect::<String>();
    assert_eq!(plain("GET", &format!("/b/k?{}", query(100))), Ok("GetObject"));
    assert_eq!(plain("GET", &format!("/b/k?{}", query(101))), Err(400));
}

#[test]
fn operations_are_told_apart() {
    for (method, target, name) in [
        ("GET", "/", "ListBuckets"),
        ("GET", "/?x-id=ListBuckets&max-buckets=2", "ListBuckets"),
        ("GET", "/b", "ListObjects"),
        ("GET", "/b/?list-type=2&prefix=a", "ListObjectsV2"),
        ("GET", "/b/k?versionId=3&response-expires=x", "GetObject"),
        ("GET", "/b%2Fk", "GetObject"),
        ("GET", "/b/k?uploadId=1", "ListParts"),
        ("PUT", "/b/k?partNumber=1&uploadId=2&x-id=UploadPart", "UploadPart"),
        ("POST", "/b?delete=", "DeleteObjects"),
        ("POST", "/b/k?%75ploads", "CreateMultipartUpload"),
        ("POST", "/b", "PostObject"),
        ("DELETE", "/b/k?versionId=null", "DeleteObject"),
        ("HEAD", "/b//", "HeadObject"),
        ("PUT", "/b/k?&", "PutObject"),
    ] {
        assert_eq!(plain(method, target), Ok(name), "{method} {target}");
    }
}

#[test]
fn what_is_not_known_is_not_implemented() {
    for (method, target) in [
        ("PUT", "/b/k?Acl"),
        ("PUT", "/b?location"),
        ("DELETE", "/b/k?acl"),
        ("DELETE", "/b?logging"),
        ("DELETE", "/b/k?uploads"),
        ("POST", "/?Action=x"),
        ("POST", "/b?nonesuch"),
        ("GET", "/b?list-type=3"),
        ("GET", "/b/k?list-type=2"),
        ("GET", "/b?acl&tagging"),
        ("PATCH", "/b/k"),
        ("PUT", "/b/k?x-amz-meta-a=b"),
    ] {
        let answer = asked(Request::builder().method(method).uri(target));
        // Unsupported operations of S3 pass the gate, and are refused with NotImplemented after the caller is
        // authenticated.
        let is_refused =
            answer.map_or_else(|refusal| refusal.status == 501, |operation| !operation.is_offered);
        assert!(is_refused, "{method} {target}");
    }
    assert!(!asked(Request::put("/b/k?encryption")).unwrap().is_offered);
    assert_eq!(plain("DELETE", "/b/k?versionId=1&versionId=2"), Err(400));
    assert_eq!(plain("DELETE", "/b/k?versionId=%ff"), Err(400));
    assert_eq!(plain("GET", "/b?allow-unordered=true&delimiter=/"), Err(400));
}

/// AWS has specific messages for requests with the wrong method or resource.
#[test]
fn misdirected_requests_have_codes_of_their_own() {
    for (method, target, status, code) in [
        ("POST", "/", 405, "MethodNotAllowed"),
        ("POST", "/b/k", 405, "MethodNotAllowed"),
        ("PUT", "/b/k?uploadId=1", 405, "MethodNotAllowed"),
        ("PUT", "/b/k?partNumber=1", 400, "InvalidArgument"),
        ("GET", "/b/k?uploads", 400, "InvalidRequest"),
        ("GET", "/b/k?versions", 400, "InvalidRequest"),
    ] {
        let refusal = asked(Request::builder().method(method).uri(target)).expect_err(target);
        assert_eq!((refusal.status.as_u16(), refusal.code), (status, code), "{method} {target}");
    }
    for method in ["GET", "HEAD", "DELETE", "POST"] {
        let request = Request::builder().method(method).uri("/b/k?uploadId=1");
        let refusal = asked(request.header("x-amz-copy-source", "/b/j")).expect_err(method);
        assert_eq!(refusal.code, "InvalidArgument", "{method}");
    }
}

#[test]
fn headers_choose_operations_and_are_refused_by_name() {
    let put = |name: &str, value: &str| {
        asked(Request::put("/b/k").header(name, value)).map(|operation| operation.name)
    };
    assert_eq!(put("x-amz-copy-source", "/b/j").unwrap(), "CopyObject");
    assert_eq!(put("x-amz-meta-Colour", "red").unwrap(), "PutObject");
    assert_eq!(put("x-amz-date", "now").unwrap(), "PutObject");
    assert_eq!(put("if-match", "*").unwrap(), "PutObject");
    assert_eq!(put("x-amz-acl", "").unwrap(), "PutObject");
    for (name, value) in [
        ("x-amz-nonesuch", ""),
        ("x-amz-acl", "public-read"),
        ("x-amz-rename-source", "/b/j"),
        ("if-modified-since", "then"),
        ("if-range", "\"t\""),
    ] {
        let refusal = put(name, value).expect_err(name);
        assert!(refusal.message.contains(name), "{}", refusal.message);
    }
    let twice = Request::put("/b/k").header("if-none-match", "*").header("if-none-match", "*");
    assert_eq!(asked(twice).expect_err("twice").code, "InvalidArgument");
    for name in ["range", "if-range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since"]
    {
        let read = || Request::get("/b/k").header(name, "first");
        assert_eq!(asked(read()).unwrap().name, "GetObject", "{name}");
        assert_eq!(asked(read().header(name, "second")).expect_err(name).code, "InvalidArgument", "{name}");
    }
    for name in ["content-md5", "content-type", "content-disposition", "expires"] {
        let twice = Request::put("/b/k").header(name, "first").header(name, "second");
        assert_eq!(asked(twice).expect_err(name).code, "InvalidArgument", "{name}");
    }
    // The elements of a list.
    for name in ["content-encoding", "content-language", "cache-control", "x-amz-meta-a"] {
        let twice = Request::put("/b/k").header(name, "first").header(name, "second");
        assert_eq!(asked(twice).unwrap().name, "PutObject", "{name}");
    }
    let read = Request::get("/b?location").header("if-none-match", "\"t\"");
    assert_eq!(asked(read).unwrap().name, "GetBucketLocation");
}

/// The S3 layer would accept the signature in a form for any operation.
#[test]
fn only_a_form_upload_is_a_form() {
    let post = |target: &str| {
        let request = Request::post(target).header("content-type", "Multipart/form-data; boundary=b");
        asked(request).map(|operation| operation.name).map_err(|refusal| refusal.code)
    };
    assert_eq!(post("/b"), Ok("PostObject"));
    for target in ["/b?delete", "/b/k?uploads", "/b/k?uploadId=1", "/b/k?restore"] {
        assert_eq!(post(target), Err("InvalidRequest"), "{target}");
    }
}

#[test]
fn a_bucket_may_stand_in_the_host() {
    let at = |target: &str| asked(Request::put(target).header("host", "b.s3.example:9000")).unwrap().name;
    assert_eq!((at("/"), at("/k")), ("CreateBucket", "PutObject"));
}

/// Some clients send headers as parameters of the URLs that they presign.
#[test]
fn headers_in_a_presigned_url_are_headers() {
    let domains = BucketDomains::none();
    let target = "/b/k?X-Amz-Signature=1&x-amz-meta-colour=dark%20red&X-Amz-Acl=private";
    let mut request = Request::put(target).header(header::CONTENT_LENGTH, 1).body(()).unwrap();
    assert_eq!(admit(&mut request, &domains).unwrap().name, "PutObject");
    assert_eq!(request.headers()["x-amz-meta-colour"], "dark red");
    for (target, header) in [
        ("/b/k?X-Amz-Signature=1&x-amz-acl=public-read", ("x-y", "")),
        ("/b/k?X-Amz-Signature=1&x-amz-meta-colour=red", ("x-amz-meta-colour", "blue")),
    ] {
        let mut request = Request::put(target).header(header.0, header.1).body(()).unwrap();
        assert!(admit(&mut request, &domains).is_err(), "{target}");
    }
}

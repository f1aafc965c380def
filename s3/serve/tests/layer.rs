//! Tests the S3 layer without a connection. The `fordway-lab ledger` command checks the responses to requests with
//! valid signatures.

use std::sync::Arc;

use fordway_serve::{AccessKeyPair, S3Responder, Users};
use fordway_store::{Bucket, ETagPolicy, MemoryStore, Objects};
use http::{Request, StatusCode};

#[tokio::test]
async fn who_does_not_sign_is_refused() {
    let store = MemoryStore::new(ETagPolicy::Fast);
    store.create_bucket(&Bucket::new("bucket").unwrap()).unwrap();
    let identity = AccessKeyPair { access_key: "me".to_owned(), secret_key: "secret".to_owned() };
    let layer = S3Responder::new(Users::one(identity, Arc::new(store)));
    let request = |authorization: &str| {
        let request = Request::get("/bucket/key").header("host", "127.0.0.1:9000");
        request.header("authorization", authorization).body(()).unwrap()
    };
    let unsigned = Request::get("/bucket/key").header("host", "127.0.0.1:9000").body(()).unwrap();
    assert_eq!(layer.answer(unsigned).await.status(), StatusCode::FORBIDDEN);
    let nonsense = layer.answer(request("AWS4-HMAC-SHA256 nonsense")).await.status();
    assert!(nonsense.is_client_error(), "{nonsense}");
}

//! The store on an S3 server that runs here: `HOP_S3_ENDPOINT` names it; it takes any key. Without it, nothing is
//! tested. `python -m moto.server` is such a server.
#![cfg(feature = "s3")]

use bytes::Bytes;
use hop_blobs::remote::{Remote, RemoteError};
use hop_blobs::{CHUNK_BYTES, GetError};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use std::collections::HashSet;
use std::sync::Arc;

#[tokio::test]
async fn keeps_proves_and_collects_chunks() {
    let Ok(endpoint) = std::env::var("HOP_S3_ENDPOINT") else {
        eprintln!("skipped: HOP_S3_ENDPOINT isn't set");
        return;
    };
    let bucket = AmazonS3Builder::new()
        .with_endpoint(&endpoint)
        .with_allow_http(true)
        .with_bucket_name("hop-test")
        .with_region("us-east-1")
        .with_access_key_id("any")
        .with_secret_access_key("any")
        .build()
        .unwrap();
    let store = Arc::new(bucket);
    let prefix = Path::from(format!("user-{}/chunks", std::process::id()));
    let remote = Remote::new(store.clone(), prefix.clone());

    let content: Bytes = (0..CHUNK_BYTES + 1000).map(|i| (i / 7) as u8).collect();
    let ids = remote.put_all(content.clone()).await.unwrap();
    assert_eq!(remote.put_all(content.clone()).await.unwrap(), ids);
    let mut back = Vec::new();
    for id in &ids {
        back.extend_from_slice(&remote.get(*id).await.unwrap());
    }
    assert_eq!(back, content);

    let name = ids[1].to_string();
    let place = prefix.clone().join(&name[..2]).join(&name[2..]);
    store
        .put(&place, PutPayload::from_static(b"something else"))
        .await
        .unwrap();
    let read = remote.get(ids[1]).await;
    assert!(matches!(
        read,
        Err(RemoteError::Content(GetError::Tampered { .. }))
    ));

    assert_eq!(remote.collect(&HashSet::from([ids[0]])).await.unwrap(), 1);
    let read = remote.get(ids[1]).await;
    assert!(matches!(
        read,
        Err(RemoteError::Content(GetError::Missing { .. }))
    ));
    assert_eq!(remote.collect(&HashSet::new()).await.unwrap(), 1);
}

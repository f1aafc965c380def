//! Configurations that buckets of this gateway never have. Programs that describe or clean up a bucket request all of
//! these configurations. As on S3, a GET of such a configuration returns the error for a missing configuration, and a
//! DELETE succeeds.

/// Defines methods of the S3 layer's trait. Each method first checks that the bucket exists. GET operations then return
/// the error code for a missing configuration, and DELETE operations succeed. The methods have the form that the
/// attribute `async_trait` generates, because this attribute does not expand macros.
macro_rules! absent {
    ($($method:ident: $input:ident => $output:ident $(, $code:literal)?;)*) => {
        $(
            fn $method<'life0, 'async_trait>(
                &'life0 self,
                request: S3Request<$input>,
            ) -> ::std::pin::Pin<
                Box<dyn ::std::future::Future<Output = S3Result<S3Response<$output>>> + Send + 'async_trait>,
            >
            where
                'life0: 'async_trait,
                Self: 'async_trait,
            {
                Box::pin(async move {
                    let user = caller(&request)?;
                    let bucket = request.input.bucket;
                    let exists = move |store: &dyn Store| $crate::s3::bucket_exists(store, bucket);
                    let found = $crate::s3::here_unless_remote(&user, exists).await;
                    $(
                        found.map_err(|$crate::s3::S3Failure(error)| error)?;
                        return Err($crate::s3::buckets::without($code).0);
                    )?
                    #[allow(unreachable_code, reason = "of those that get")]
                    plain(found.map(|()| $output::default()))
                })
            }
        )*
    };
}
pub(super) use absent;

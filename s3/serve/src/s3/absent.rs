//! Configurations that no bucket here has. Programs that describe or tidy up a bucket ask for each of
//! them: the answer is that there is none, and taking away what is not there succeeds, as on S3.

/// Methods of the S3 layer's trait: those that get a configuration answer with the code for a missing
/// one, those that delete it with success, once the bucket is known to exist. Written out as the
/// attribute of the trait would do it, which does not see into a macro.
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
                    $(return Err($crate::s3::buckets::without(&*user.store, bucket, $code).0);)?
                    #[allow(unreachable_code, reason = "of those that get")]
                    plain($crate::s3::bucket_exists(&*user.store, bucket).map(|()| $output::default()))
                })
            }
        )*
    };
}
pub(super) use absent;

/* The interface of Fordway's drop-in for libs3.
 *
 * Names, numbers and layouts are those of libs3 4.1, so programs need no changes. If LIBS3_API_2_0 is
 * defined, as libs3-2.0.h does, they are those of libs3 2.0. docs/reference/libs3.md describes the calls,
 * the forms of host names, and unsupported features.
 */
#ifndef LIBS3_H
#define LIBS3_H

#include <stdint.h>
#include <sys/select.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Limits, in bytes unless stated otherwise. */
#define S3_MAX_HOSTNAME_SIZE 255
#define S3_MAX_BUCKET_NAME_SIZE 255
#define S3_MAX_KEY_SIZE 1024
#define S3_MAX_METADATA_SIZE 2048
#define S3_METADATA_HEADER_NAME_PREFIX "x-amz-meta-"
#define S3_MAX_METADATA_COUNT (S3_MAX_METADATA_SIZE / (sizeof(S3_METADATA_HEADER_NAME_PREFIX "nv") - 1))
#define S3_MAX_ACL_GRANT_COUNT 100
#define S3_MAX_GRANTEE_EMAIL_ADDRESS_SIZE 128
#define S3_MAX_GRANTEE_USER_ID_SIZE 128
#define S3_MAX_GRANTEE_DISPLAY_NAME_SIZE 128
#define S3_MAX_AUTHENTICATED_QUERY_STRING_SIZE 3468

/* The host if neither S3_initialize nor the environment (AWS_ENDPOINT_URL) names a host. */
#define S3_DEFAULT_HOSTNAME "s3.amazonaws.com"
#ifndef LIBS3_API_2_0
#define S3_DEFAULT_REGION "us-east-1"
#endif

/* Flags of S3_initialize, which have no effect. */
#define S3_INIT_WINSOCK 1
#ifndef LIBS3_API_2_0
#define S3_INIT_VERIFY_PEER 2
#endif
#define S3_INIT_ALL (S3_INIT_WINSOCK)

/* The result of a request. S3StatusError... is the error code in the body of the response. S3StatusHttpError...
 * is the HTTP status of an error response without a body, for example to S3_head_object. */
typedef enum {
    S3StatusOK = 0,
    S3StatusInternalError,
    S3StatusOutOfMemory,
    S3StatusInterrupted,
    S3StatusInvalidBucketNameTooLong,
    S3StatusInvalidBucketNameFirstCharacter,
    S3StatusInvalidBucketNameCharacter,
    S3StatusInvalidBucketNameCharacterSequence,
    S3StatusInvalidBucketNameTooShort,
    S3StatusInvalidBucketNameDotQuadNotation,
    S3StatusQueryParamsTooLong,
    S3StatusFailedToInitializeRequest,
    S3StatusMetaDataHeadersTooLong,
    S3StatusBadMetaData,
    S3StatusBadContentType,
    S3StatusContentTypeTooLong,
    S3StatusBadMD5,
    S3StatusMD5TooLong,
    S3StatusBadCacheControl,
    S3StatusCacheControlTooLong,
    S3StatusBadContentDispositionFilename,
    S3StatusContentDispositionFilenameTooLong,
    S3StatusBadContentEncoding,
    S3StatusContentEncodingTooLong,
    S3StatusBadIfMatchETag,
    S3StatusIfMatchETagTooLong,
    S3StatusBadIfNotMatchETag,
    S3StatusIfNotMatchETagTooLong,
    S3StatusHeadersTooLong,
    S3StatusKeyTooLong,
    S3StatusUriTooLong,
    S3StatusXmlParseFailure,
    S3StatusEmailAddressTooLong,
    S3StatusUserIdTooLong,
    S3StatusUserDisplayNameTooLong,
    S3StatusGroupUriTooLong,
    S3StatusPermissionTooLong,
    S3StatusTargetBucketTooLong,
    S3StatusTargetPrefixTooLong,
    S3StatusTooManyGrants,
    S3StatusBadGrantee,
    S3StatusBadPermission,
    S3StatusXmlDocumentTooLarge,
    S3StatusNameLookupError,
    S3StatusFailedToConnect,
    S3StatusServerFailedVerification,
    S3StatusConnectionFailed,
    S3StatusAbortedByCallback,
#ifndef LIBS3_API_2_0
    S3StatusNotSupported,
#endif
    S3StatusErrorAccessDenied,
    S3StatusErrorAccountProblem,
    S3StatusErrorAmbiguousGrantByEmailAddress,
    S3StatusErrorBadDigest,
    S3StatusErrorBucketAlreadyExists,
    S3StatusErrorBucketAlreadyOwnedByYou,
    S3StatusErrorBucketNotEmpty,
    S3StatusErrorCredentialsNotSupported,
    S3StatusErrorCrossLocationLoggingProhibited,
    S3StatusErrorEntityTooSmall,
    S3StatusErrorEntityTooLarge,
    S3StatusErrorExpiredToken,
#ifndef LIBS3_API_2_0
    S3StatusErrorIllegalVersioningConfigurationException,
#endif
    S3StatusErrorIncompleteBody,
    S3StatusErrorIncorrectNumberOfFilesInPostRequest,
    S3StatusErrorInlineDataTooLarge,
    S3StatusErrorInternalError,
    S3StatusErrorInvalidAccessKeyId,
    S3StatusErrorInvalidAddressingHeader,
    S3StatusErrorInvalidArgument,
    S3StatusErrorInvalidBucketName,
#ifndef LIBS3_API_2_0
    S3StatusErrorInvalidBucketState,
#endif
    S3StatusErrorInvalidDigest,
#ifndef LIBS3_API_2_0
    S3StatusErrorInvalidEncryptionAlgorithmError,
#endif
    S3StatusErrorInvalidLocationConstraint,
#ifndef LIBS3_API_2_0
    S3StatusErrorInvalidObjectState,
    S3StatusErrorInvalidPart,
    S3StatusErrorInvalidPartOrder,
#endif
    S3StatusErrorInvalidPayer,
    S3StatusErrorInvalidPolicyDocument,
    S3StatusErrorInvalidRange,
#ifndef LIBS3_API_2_0
    S3StatusErrorInvalidRequest,
#endif
    S3StatusErrorInvalidSecurity,
    S3StatusErrorInvalidSOAPRequest,
    S3StatusErrorInvalidStorageClass,
    S3StatusErrorInvalidTargetBucketForLogging,
    S3StatusErrorInvalidToken,
    S3StatusErrorInvalidURI,
    S3StatusErrorKeyTooLong,
    S3StatusErrorMalformedACLError,
#ifndef LIBS3_API_2_0
    S3StatusErrorMalformedPOSTRequest,
#endif
    S3StatusErrorMalformedXML,
    S3StatusErrorMaxMessageLengthExceeded,
    S3StatusErrorMaxPostPreDataLengthExceededError,
    S3StatusErrorMetadataTooLarge,
    S3StatusErrorMethodNotAllowed,
    S3StatusErrorMissingAttachment,
    S3StatusErrorMissingContentLength,
#ifndef LIBS3_API_2_0
    S3StatusErrorMissingRequestBodyError,
#endif
    S3StatusErrorMissingSecurityElement,
    S3StatusErrorMissingSecurityHeader,
    S3StatusErrorNoLoggingStatusForKey,
    S3StatusErrorNoSuchBucket,
    S3StatusErrorNoSuchKey,
#ifndef LIBS3_API_2_0
    S3StatusErrorNoSuchLifecycleConfiguration,
    S3StatusErrorNoSuchUpload,
    S3StatusErrorNoSuchVersion,
#endif
    S3StatusErrorNotImplemented,
    S3StatusErrorNotSignedUp,
#ifndef LIBS3_API_2_0
    S3StatusErrorNoSuchBucketPolicy,
#endif
    S3StatusErrorOperationAborted,
    S3StatusErrorPermanentRedirect,
    S3StatusErrorPreconditionFailed,
    S3StatusErrorRedirect,
#ifndef LIBS3_API_2_0
    S3StatusErrorRestoreAlreadyInProgress,
#endif
    S3StatusErrorRequestIsNotMultiPartContent,
    S3StatusErrorRequestTimeout,
    S3StatusErrorRequestTimeTooSkewed,
    S3StatusErrorRequestTorrentOfBucketError,
    S3StatusErrorSignatureDoesNotMatch,
#ifndef LIBS3_API_2_0
    S3StatusErrorServiceUnavailable,
#endif
    S3StatusErrorSlowDown,
    S3StatusErrorTemporaryRedirect,
    S3StatusErrorTokenRefreshRequired,
    S3StatusErrorTooManyBuckets,
    S3StatusErrorUnexpectedContent,
    S3StatusErrorUnresolvableGrantByEmailAddress,
    S3StatusErrorUserKeyMustBeSpecified,
#ifndef LIBS3_API_2_0
    S3StatusErrorQuotaExceeded,
#endif
    S3StatusErrorUnknown,
    S3StatusHttpErrorMovedTemporarily,
    S3StatusHttpErrorBadRequest,
    S3StatusHttpErrorForbidden,
    S3StatusHttpErrorNotFound,
    S3StatusHttpErrorConflict,
    S3StatusHttpErrorUnknown
} S3Status;

typedef enum { S3ProtocolHTTPS = 0, S3ProtocolHTTP = 1 } S3Protocol;
typedef enum { S3UriStyleVirtualHost = 0, S3UriStylePath = 1 } S3UriStyle;

typedef enum {
    S3GranteeTypeAmazonCustomerByEmail = 0,
    S3GranteeTypeCanonicalUser = 1,
    S3GranteeTypeAllAwsUsers = 2,
    S3GranteeTypeAllUsers = 3,
    S3GranteeTypeLogDelivery = 4
} S3GranteeType;

typedef enum {
    S3PermissionRead = 0,
    S3PermissionWrite = 1,
    S3PermissionReadACP = 2,
    S3PermissionWriteACP = 3,
    S3PermissionFullControl = 4
} S3Permission;

typedef enum {
    S3CannedAclPrivate = 0,
    S3CannedAclPublicRead = 1,
    S3CannedAclPublicReadWrite = 2,
    S3CannedAclAuthenticatedRead = 3
#ifndef LIBS3_API_2_0
    ,
    S3CannedAclBucketOwnerFullControl = 4
#endif
} S3CannedAcl;

/* A set of requests that make progress while the program runs the context. */
typedef struct S3RequestContext S3RequestContext;

typedef struct S3NameValue {
    const char *name;
    const char *value;
} S3NameValue;

/* Properties of a response. NULL or a negative time means that the property is absent. ETags have quotes. */
typedef struct S3ResponseProperties {
    const char *requestId;
    const char *requestId2;
    const char *contentType;
    uint64_t contentLength;
    const char *server;
    const char *eTag;
    int64_t lastModified; /* seconds since the epoch */
    int metaDataCount;
    const S3NameValue *metaData;
#ifndef LIBS3_API_2_0
    char usesServerSideEncryption;
#endif
} S3ResponseProperties;

typedef struct S3AclGrant {
    S3GranteeType granteeType;
    union {
        struct {
            char emailAddress[S3_MAX_GRANTEE_EMAIL_ADDRESS_SIZE];
        } amazonCustomerByEmail;
        struct {
            char id[S3_MAX_GRANTEE_USER_ID_SIZE];
            char displayName[S3_MAX_GRANTEE_DISPLAY_NAME_SIZE];
        } canonicalUser;
    } grantee;
    S3Permission permission;
} S3AclGrant;

/* The location of a bucket, and the keys for its requests. */
typedef struct S3BucketContext {
    const char *hostName; /* selects the lane; NULL: the host of S3_initialize */
    const char *bucketName;
    S3Protocol protocol; /* used if the host name has no scheme */
    S3UriStyle uriStyle;
    const char *accessKeyId; /* NULL or empty: the keys from the environment */
    const char *secretAccessKey;
#ifndef LIBS3_API_2_0
    const char *securityToken;
    const char *authRegion;
#endif
} S3BucketContext;

typedef struct S3ListBucketContent {
    const char *key;
    int64_t lastModified; /* seconds since the epoch */
    const char *eTag;
    uint64_t size;
    const char *ownerId;
    const char *ownerDisplayName;
} S3ListBucketContent;

#ifndef LIBS3_API_2_0
typedef struct S3ListMultipartUpload {
    const char *key;
    const char *uploadId;
    const char *initiatorId;
    const char *initiatorDisplayName;
    const char *ownerId;
    const char *ownerDisplayName;
    const char *storageClass;
    int64_t initiated; /* seconds since the epoch */
} S3ListMultipartUpload;

typedef struct S3ListPart {
    const char *eTag;
    int64_t lastModified; /* seconds since the epoch */
    uint64_t partNumber;
    uint64_t size;
} S3ListPart;
#endif

/* Properties to store with the content. NULL and empty strings are ignored. */
typedef struct S3PutProperties {
    const char *contentType;
    const char *md5; /* base64; checked */
    const char *cacheControl;
    const char *contentDispositionFilename;
    const char *contentEncoding;
    int64_t expires; /* seconds since the epoch; negative: never */
    S3CannedAcl cannedAcl;
    int metaDataCount;
    const S3NameValue *metaData;
#ifndef LIBS3_API_2_0
    char useServerSideEncryption;
#endif
} S3PutProperties;

/* Conditions of a read. Negative times and NULL tags are ignored. */
typedef struct S3GetConditions {
    int64_t ifModifiedSince;
    int64_t ifNotModifiedSince;
    const char *ifMatchETag;
    const char *ifNotMatchETag;
} S3GetConditions;

typedef struct S3ErrorDetails {
    const char *message; /* the operation, its target, the cause, and what to do next */
    const char *resource;
    const char *furtherDetails;
    int extraDetailsCount;
    S3NameValue *extraDetails;
} S3ErrorDetails;

/* Called at most once, on success, before any data. */
typedef S3Status(S3ResponsePropertiesCallback)(const S3ResponseProperties *properties, void *callbackData);
/* Called exactly once, at the end. errorDetails is never NULL; on success, all pointers in it are NULL. */
typedef void(S3ResponseCompleteCallback)(S3Status status, const S3ErrorDetails *errorDetails,
                                         void *callbackData);
typedef S3Status(S3ListServiceCallback)(const char *ownerId, const char *ownerDisplayName,
                                        const char *bucketName, int64_t creationDateSeconds,
                                        void *callbackData);
/* Called with up to 32 entries at a time. Not called if there are no entries. */
typedef S3Status(S3ListBucketCallback)(int isTruncated, const char *nextMarker, int contentsCount,
                                       const S3ListBucketContent *contents, int commonPrefixesCount,
                                       const char **commonPrefixes, void *callbackData);
/* Returns the number of bytes put into the buffer, or a negative number to abort the request. */
typedef int(S3PutObjectDataCallback)(int bufferSize, char *buffer, void *callbackData);
typedef S3Status(S3GetObjectDataCallback)(int bufferSize, const char *buffer, void *callbackData);
#ifndef LIBS3_API_2_0
typedef S3Status(S3MultipartInitialResponseCallback)(const char *upload_id, void *callbackData);
typedef S3Status(S3ListMultipartUploadsResponseCallback)(
    int isTruncated, const char *nextKeyMarker, const char *nextUploadIdMarker, int uploadsCount,
    const S3ListMultipartUpload *uploads, int commonPrefixesCount, const char **commonPrefixes,
    void *callbackData);
/* handlePartsStart is the number of parts in earlier calls. */
typedef S3Status(S3ListPartsResponseCallback)(
    int isTruncated, const char *nextPartNumberMarker, const char *initiatorId,
    const char *initiatorDisplayName, const char *ownerId, const char *ownerDisplayName,
    const char *storageClass, int partsCount, int handlePartsStart, const S3ListPart *parts,
    void *callbackData);
typedef S3Status(S3MultipartCommitResponseCallback)(const char *location, const char *etag,
                                                    void *callbackData);
typedef S3Status (*S3SetupCurlCallback)(void *curlMulti, void *curlEasy, void *setupData);
#endif

typedef struct S3ResponseHandler {
    S3ResponsePropertiesCallback *propertiesCallback;
    S3ResponseCompleteCallback *completeCallback;
} S3ResponseHandler;

typedef struct S3ListServiceHandler {
    S3ResponseHandler responseHandler;
    S3ListServiceCallback *listServiceCallback;
} S3ListServiceHandler;

typedef struct S3ListBucketHandler {
    S3ResponseHandler responseHandler;
    S3ListBucketCallback *listBucketCallback;
} S3ListBucketHandler;

typedef struct S3PutObjectHandler {
    S3ResponseHandler responseHandler;
    S3PutObjectDataCallback *putObjectDataCallback;
} S3PutObjectHandler;

typedef struct S3GetObjectHandler {
    S3ResponseHandler responseHandler;
    S3GetObjectDataCallback *getObjectDataCallback;
} S3GetObjectHandler;

#ifndef LIBS3_API_2_0
typedef struct S3MultipartInitialHandler {
    S3ResponseHandler responseHandler;
    S3MultipartInitialResponseCallback *responseXmlCallback;
} S3MultipartInitialHandler;

typedef struct S3MultipartCommitHandler {
    S3ResponseHandler responseHandler;
    S3PutObjectDataCallback *putObjectDataCallback; /* returns the XML list of the parts */
    S3MultipartCommitResponseCallback *responseXmlCallback;
} S3MultipartCommitHandler;

typedef struct S3ListMultipartUploadsHandler {
    S3ResponseHandler responseHandler;
    S3ListMultipartUploadsResponseCallback *responseXmlCallback;
} S3ListMultipartUploadsHandler;

typedef struct S3ListPartsHandler {
    S3ResponseHandler responseHandler;
    S3ListPartsResponseCallback *responseXmlCallback;
} S3ListPartsHandler;

typedef struct S3AbortMultipartUploadHandler {
    S3ResponseHandler responseHandler;
} S3AbortMultipartUploadHandler;
#endif

/* The library, names, and lists. */
S3Status S3_initialize(const char *userAgentInfo, int flags, const char *defaultS3HostName);
void S3_deinitialize(void);
const char *S3_get_status_name(S3Status status);
S3Status S3_validate_bucket_name(const char *bucketName, S3UriStyle uriStyle);
S3Status S3_convert_acl(char *aclXml, char *ownerId, char *ownerDisplayName, int *aclGrantCountReturn,
                        S3AclGrant *aclGrants);
int S3_status_is_retryable(S3Status status);

/* Request contexts. */
S3Status S3_create_request_context(S3RequestContext **requestContextReturn);
void S3_destroy_request_context(S3RequestContext *requestContext);
S3Status S3_runall_request_context(S3RequestContext *requestContext);
S3Status S3_runonce_request_context(S3RequestContext *requestContext, int *requestsRemainingReturn);
S3Status S3_get_request_context_fdsets(S3RequestContext *requestContext, fd_set *readFdSet,
                                       fd_set *writeFdSet, fd_set *exceptFdSet, int *maxFd);
int64_t S3_get_request_context_timeout(S3RequestContext *requestContext);

/* Requests. If requestContext is NULL, the request is complete when the call returns. */
#ifndef LIBS3_API_2_0
S3Status S3_create_request_context_ex(S3RequestContext **requestContextReturn, void *curlMulti,
                                      S3SetupCurlCallback setupCurlCallback, void *setupCurlCallbackData);
S3Status S3_process_request_context(S3RequestContext *requestContext);
/* Has no effect: certificates are always verified. */
void S3_set_request_context_verify_peer(S3RequestContext *requestContext, int verifyPeer);
/* expires: lifetime of the URL, in seconds. */
S3Status S3_generate_authenticated_query_string(char *buffer, const S3BucketContext *bucketContext,
                                                const char *key, int expires, const char *resource,
                                                const char *httpMethod);
void S3_list_service(S3Protocol protocol, const char *accessKeyId, const char *secretAccessKey,
    const char *securityToken, const char *hostName, const char *authRegion,
    S3RequestContext *requestContext, int timeoutMs, const S3ListServiceHandler *handler,
    void *callbackData);
void S3_test_bucket(S3Protocol protocol, S3UriStyle uriStyle, const char *accessKeyId,
    const char *secretAccessKey, const char *securityToken, const char *hostName,
    const char *bucketName, const char *authRegion, int locationConstraintReturnSize,
    char *locationConstraintReturn, S3RequestContext *requestContext, int timeoutMs,
    const S3ResponseHandler *handler, void *callbackData);
void S3_create_bucket(S3Protocol protocol, const char *accessKeyId, const char *secretAccessKey,
    const char *securityToken, const char *hostName, const char *bucketName, const char *authRegion,
    S3CannedAcl cannedAcl, const char *locationConstraint, S3RequestContext *requestContext,
    int timeoutMs, const S3ResponseHandler *handler, void *callbackData);
void S3_delete_bucket(S3Protocol protocol, S3UriStyle uriStyle, const char *accessKeyId,
    const char *secretAccessKey, const char *securityToken, const char *hostName,
    const char *bucketName, const char *authRegion, S3RequestContext *requestContext, int timeoutMs,
    const S3ResponseHandler *handler, void *callbackData);
void S3_list_bucket(const S3BucketContext *bucketContext, const char *prefix, const char *marker,
    const char *delimiter, int maxkeys, S3RequestContext *requestContext, int timeoutMs,
    const S3ListBucketHandler *handler, void *callbackData);
void S3_put_object(const S3BucketContext *bucketContext, const char *key, uint64_t contentLength,
    const S3PutProperties *putProperties, S3RequestContext *requestContext, int timeoutMs,
    const S3PutObjectHandler *handler, void *callbackData);
void S3_copy_object(const S3BucketContext *bucketContext, const char *key,
    const char *destinationBucket, const char *destinationKey, const S3PutProperties *putProperties,
    int64_t *lastModifiedReturn, int eTagReturnSize, char *eTagReturn,
    S3RequestContext *requestContext, int timeoutMs, const S3ResponseHandler *handler,
    void *callbackData);
void S3_get_object(const S3BucketContext *bucketContext, const char *key,
    const S3GetConditions *getConditions, uint64_t startByte, uint64_t byteCount,
    S3RequestContext *requestContext, int timeoutMs, const S3GetObjectHandler *handler,
    void *callbackData);
void S3_head_object(const S3BucketContext *bucketContext, const char *key,
    S3RequestContext *requestContext, int timeoutMs, const S3ResponseHandler *handler,
    void *callbackData);
void S3_delete_object(const S3BucketContext *bucketContext, const char *key,
    S3RequestContext *requestContext, int timeoutMs, const S3ResponseHandler *handler,
    void *callbackData);
void S3_get_acl(const S3BucketContext *bucketContext, const char *key, char *ownerId,
    char *ownerDisplayName, int *aclGrantCountReturn, S3AclGrant *aclGrants,
    S3RequestContext *requestContext, int timeoutMs, const S3ResponseHandler *handler,
    void *callbackData);
void S3_set_acl(const S3BucketContext *bucketContext, const char *key, const char *ownerId,
    const char *ownerDisplayName, int aclGrantCount, const S3AclGrant *aclGrants,
    S3RequestContext *requestContext, int timeoutMs, const S3ResponseHandler *handler,
    void *callbackData);
void S3_get_server_access_logging(const S3BucketContext *bucketContext, char *targetBucketReturn,
    char *targetPrefixReturn, int *aclGrantCountReturn, S3AclGrant *aclGrants,
    S3RequestContext *requestContext, int timeoutMs, const S3ResponseHandler *handler,
    void *callbackData);
void S3_set_server_access_logging(const S3BucketContext *bucketContext, const char *targetBucket,
    const char *targetPrefix, int aclGrantCount, const S3AclGrant *aclGrants,
    S3RequestContext *requestContext, int timeoutMs, const S3ResponseHandler *handler,
    void *callbackData);
/* Copies count + 1 bytes, as libs3 does: the bytes from startOffset to startOffset + count, inclusive. If count is 0,
 * copies the bytes from startOffset to the end. */
void S3_copy_object_range(const S3BucketContext *bucketContext, const char *key,
    const char *destinationBucket, const char *destinationKey, const int partNo,
    const char *uploadId, const unsigned long startOffset, const unsigned long count,
    const S3PutProperties *putProperties, int64_t *lastModifiedReturn, int eTagReturnSize,
    char *eTagReturn, S3RequestContext *requestContext, int timeoutMs,
    const S3ResponseHandler *handler, void *callbackData);
void S3_get_lifecycle(const S3BucketContext *bucketContext, char *lifecycleXmlDocumentReturn,
    int lifecycleXmlDocumentBufferSize, S3RequestContext *requestContext, int timeoutMs,
    const S3ResponseHandler *handler, void *callbackData);
void S3_set_lifecycle(const S3BucketContext *bucketContext, const char *lifecycleXmlDocument,
    S3RequestContext *requestContext, int timeoutMs, const S3ResponseHandler *handler,
    void *callbackData);
void S3_initiate_multipart(S3BucketContext *bucketContext, const char *key,
    S3PutProperties *putProperties, S3MultipartInitialHandler *handler,
    S3RequestContext *requestContext, int timeoutMs, void *callbackData);
void S3_upload_part(S3BucketContext *bucketContext, const char *key, S3PutProperties *putProperties,
    S3PutObjectHandler *handler, int seq, const char *upload_id, int partContentLength,
    S3RequestContext *requestContext, int timeoutMs, void *callbackData);
void S3_complete_multipart_upload(S3BucketContext *bucketContext, const char *key,
    S3MultipartCommitHandler *handler, const char *upload_id, int contentLength,
    S3RequestContext *requestContext, int timeoutMs, void *callbackData);
void S3_list_parts(S3BucketContext *bucketContext, const char *key, const char *partnumbermarker,
    const char *uploadid, const char *encodingtype, int maxparts, S3RequestContext *requestContext,
    int timeoutMs, const S3ListPartsHandler *handler, void *callbackData);
void S3_abort_multipart_upload(S3BucketContext *bucketContext, const char *key,
    const char *uploadId, int timeoutMs, S3AbortMultipartUploadHandler *handler);
void S3_list_multipart_uploads(S3BucketContext *bucketContext, const char *prefix,
    const char *keymarker, const char *uploadidmarker, const char *encodingtype,
    const char *delimiter, int maxuploads, S3RequestContext *requestContext, int timeoutMs,
    const S3ListMultipartUploadsHandler *handler, void *callbackData);
#else
/* expires: end of the URL's lifetime, in seconds since the epoch. */
S3Status S3_generate_authenticated_query_string(char *buffer, const S3BucketContext *bucketContext,
                                                const char *key, int64_t expires, const char *resource);
void S3_list_service(S3Protocol protocol, const char *accessKeyId, const char *secretAccessKey,
    const char *hostName, S3RequestContext *requestContext, const S3ListServiceHandler *handler,
    void *callbackData);
void S3_test_bucket(S3Protocol protocol, S3UriStyle uriStyle, const char *accessKeyId,
    const char *secretAccessKey, const char *hostName, const char *bucketName,
    int locationConstraintReturnSize, char *locationConstraintReturn,
    S3RequestContext *requestContext, const S3ResponseHandler *handler, void *callbackData);
void S3_create_bucket(S3Protocol protocol, const char *accessKeyId, const char *secretAccessKey,
    const char *hostName, const char *bucketName, S3CannedAcl cannedAcl,
    const char *locationConstraint, S3RequestContext *requestContext,
    const S3ResponseHandler *handler, void *callbackData);
void S3_delete_bucket(S3Protocol protocol, S3UriStyle uriStyle, const char *accessKeyId,
    const char *secretAccessKey, const char *hostName, const char *bucketName,
    S3RequestContext *requestContext, const S3ResponseHandler *handler, void *callbackData);
void S3_list_bucket(const S3BucketContext *bucketContext, const char *prefix, const char *marker,
    const char *delimiter, int maxkeys, S3RequestContext *requestContext,
    const S3ListBucketHandler *handler, void *callbackData);
void S3_put_object(const S3BucketContext *bucketContext, const char *key, uint64_t contentLength,
    const S3PutProperties *putProperties, S3RequestContext *requestContext,
    const S3PutObjectHandler *handler, void *callbackData);
void S3_copy_object(const S3BucketContext *bucketContext, const char *key,
    const char *destinationBucket, const char *destinationKey, const S3PutProperties *putProperties,
    int64_t *lastModifiedReturn, int eTagReturnSize, char *eTagReturn,
    S3RequestContext *requestContext, const S3ResponseHandler *handler, void *callbackData);
void S3_get_object(const S3BucketContext *bucketContext, const char *key,
    const S3GetConditions *getConditions, uint64_t startByte, uint64_t byteCount,
    S3RequestContext *requestContext, const S3GetObjectHandler *handler, void *callbackData);
void S3_head_object(const S3BucketContext *bucketContext, const char *key,
    S3RequestContext *requestContext, const S3ResponseHandler *handler, void *callbackData);
void S3_delete_object(const S3BucketContext *bucketContext, const char *key,
    S3RequestContext *requestContext, const S3ResponseHandler *handler, void *callbackData);
void S3_get_acl(const S3BucketContext *bucketContext, const char *key, char *ownerId,
    char *ownerDisplayName, int *aclGrantCountReturn, S3AclGrant *aclGrants,
    S3RequestContext *requestContext, const S3ResponseHandler *handler, void *callbackData);
void S3_set_acl(const S3BucketContext *bucketContext, const char *key, const char *ownerId,
    const char *ownerDisplayName, int aclGrantCount, const S3AclGrant *aclGrants,
    S3RequestContext *requestContext, const S3ResponseHandler *handler, void *callbackData);
void S3_get_server_access_logging(const S3BucketContext *bucketContext, char *targetBucketReturn,
    char *targetPrefixReturn, int *aclGrantCountReturn, S3AclGrant *aclGrants,
    S3RequestContext *requestContext, const S3ResponseHandler *handler, void *callbackData);
void S3_set_server_access_logging(const S3BucketContext *bucketContext, const char *targetBucket,
    const char *targetPrefix, int aclGrantCount, const S3AclGrant *aclGrants,
    S3RequestContext *requestContext, const S3ResponseHandler *handler, void *callbackData);
#endif

#ifdef __cplusplus
}
#endif

#endif

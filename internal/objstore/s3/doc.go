// Package s3 is S3, and what is compatible with it, for checkpoints (Store),
// and for the files of tables (Reader, Writer).
//
// # What stands on which request
//
//   - Create once: one PUT (or one CompleteMultipartUpload) with
//     If-None-Match: *. The object carries a nonce of the call in its user
//     metadata. Whatever the answer was, a 412, an error or none at all, the
//     object itself says whose it is: our nonce is success, also where the
//     answer got lost and the repeated request met our own object.
//   - A file of a table: one PUT, or one multipart upload that becomes visible
//     as a whole. There is no temporary name and no rename.
//   - Every attempt of a request is signed anew, with the credentials of its own
//     time. Throttling and 5xx back off and are tried again, bounded.
//
// # What is not there
//
// An object store has no folder that could vanish, and no lock: instead of
// objstore.ErrVanished the next start finds a checkpoint that is partly gone and
// decides from the markers, and the lease in the marker keeps two hosts apart.
// A process that is killed inside a multipart upload leaves parts that are
// invisible but cost money: the bucket needs a lifecycle rule
// AbortIncompleteMultipartUpload.
package s3

// Package secrets makes the secrets of accounts and users, recognizes them in texts, and hashes them.
//
// A store holds no secret: only its [Digest], or for a password its argon2id hash ([PHC]). A text that is logged, shown or kept in the
// history goes through [MaskSecrets] or [Sanitize] first. The package knows no accounts, users or keys.
package secrets

package kv

import (
	"crypto/sha1" // what ZooKeeper's digest scheme is made of
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"strings"
)

// DigestIdentity returns the identity that an auth packet of the digest scheme gives: ("digest", user:hash), where user
// is the text before the first colon, or all of it, and hash the base64 of the digest of the whole text
// (zookeeper-protocol 9.2). alg is Java's name of the hash: SHA1, SHA-224, SHA-256, SHA-384 or SHA-512; empty is SHA1.
// Another one is the caller's mistake and panics. Bytes that are no UTF-8 become U+FFFD, as in Java. userPassword is
// not kept.
func DigestIdentity(alg string, userPassword []byte) Identity {
	text := strings.ToValidUTF8(string(userPassword), "\uFFFD")
	var sum []byte
	switch strings.ToUpper(alg) {
	case "", "SHA1", "SHA-1":
		h := sha1.Sum([]byte(text))
		sum = h[:]
	case "SHA-224":
		h := sha256.Sum224([]byte(text))
		sum = h[:]
	case "SHA-256":
		h := sha256.Sum256([]byte(text))
		sum = h[:]
	case "SHA-384":
		h := sha512.Sum384([]byte(text))
		sum = h[:]
	case "SHA-512":
		h := sha512.Sum512([]byte(text))
		sum = h[:]
	default:
		panic("kv: unknown digest algorithm " + alg)
	}
	user, _, _ := strings.Cut(text, ":")
	return Identity{Scheme: "digest", ID: user + ":" + base64.StdEncoding.EncodeToString(sum)}
}

// Package e2e tests the binary from outside, as its users meet it: its commands,
// what they print and how they end, what it keeps when it is killed, and what it
// must never write down. It holds nothing but tests.
package e2e

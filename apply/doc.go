// Package apply makes the prices, plans, users and keys of accounts equal to a file in YAML or JSON.
//
// [Parse] reads a file and lists its problems with their lines. [Run] compares the file with the accounts in a store,
// and stores the changes of each account in one transaction. A second run of the same file finds no changes.
//
// Names are the identity. A plan is known by its name, a user by its external id, or else its email, or else its name, and a key by its name
// within its user. Members that the file does not have stay as they are.
package apply

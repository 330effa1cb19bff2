// Package webhook delivers the events of accounts to the webhooks of the accounts, as in Standard Webhooks: https://www.standardwebhooks.com.
//
// An event waits in the store until its delivery has ended. A [Deliverer] sends each event at least once. It stores the result after the answer, so a
// crash between the two repeats the request, with the same id. If several processes share a store, only the holder of a lease delivers.
//
//	Service.PutEvents ──► store ──► Deliverer: a queue for each webhook ──► Sender ──► the receiver
//	                                    ▲────────── Service.EndAttempt ◄───────┘
package webhook

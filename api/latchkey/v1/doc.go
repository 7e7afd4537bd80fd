// Package latchkeyv1 is the lock service in gRPC: the messages and calls of locks.proto.
package latchkeyv1

//go:generate go run -C ../../../tools ./protogen ../api latchkey/v1/locks.proto

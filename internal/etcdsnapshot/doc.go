// Package etcdsnapshot reads what etcdctl snapshot save has saved of an etcd, and writes it as a
// backup of Latchkey.
//
// It is etcd's database, a file of bbolt, with a SHA-256 behind it. Of its buckets
//
//	key        has what happened to each key by revision: the value, or that it was deleted
//	lease      has the leases
//	auth, authUsers, authRoles
//	           have whether users are checked, the users and the roles
//	meta       has up to which revision history was compacted, and etcd's version
//
// are read. The others, of the cluster that was and its alarms, are left behind, and so is history.
package etcdsnapshot

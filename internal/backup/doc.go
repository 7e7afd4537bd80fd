// Package backup is the format of backups, docs/snapshot.md: Writer writes the records and
// Read checks a file of them. It does no more than that: what is in a backup, and what is made of
// one, is for others to say.
package backup

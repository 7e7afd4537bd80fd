// Package config turns the command line, the environment and a configuration
// file into the Config of a node.
//
// One table (options.go) lists every setting: its name, its value, its help text
// and, where a setting is known but does nothing or can't be done, the reason. Parsing, the
// environment, the file, the help text and the tests all go by that table.
//
// Names and defaults are etcd's wherever the thing exists in etcd, so that an
// etcd command line starts a node. A setting comes from the first of
//
//  1. the configuration file, if there is one; then flags and environment count
//     for nothing,
//  2. a flag, -name or --name,
//  3. LATCHKEY_NAME in the environment,
//  4. ETCD_NAME in the environment,
//  5. the default.
package config

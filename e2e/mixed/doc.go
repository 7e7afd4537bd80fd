// Package mixed has clients of every kind take the same locks while nodes, links and the
// clients themselves fail, and judges by what each of them was told.
package mixed

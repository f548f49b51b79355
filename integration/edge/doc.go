// Package edge tries the role `edge` as users run it: the program, with real primaries, real targets and real databases of where
// addresses are.
package edge

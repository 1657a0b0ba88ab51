// Package jq runs upcasters: jq programs that make one JSON value into another,
// and that nobody has to trust.
//
//	p, err := jq.Compile(`.mem_mib = .mem_mb | del(.mem_mb)`)
//	if err != nil { … } // says what is wrong with the program
//	out, err := p.Run(ctx, payload)
//
// # The language
//
// It is jq as gojq has it, with exactly one value as the result. What an
// upcaster must not see or do is refused when it is compiled, with the reason:
// the environment, other input, the clock and the local time zone, printing,
// halting, modules. So are streams (tostream, fromstream), SQL-like JOIN, and
// names that begin with an underscore. A function that the program defines
// itself takes the place of one that is there, or refused, under its name.
//
// Numbers of the payload that the program does not compute with come out as
// they are written, whatever their size: 12345678901234567890, 1.0 and 1e2 stay
// so. Integers are computed exactly; what has a point or an exponent becomes a
// float as soon as it is computed with. Numbers written in the program lose
// their form: 1.0 comes out as 1. Objects come out with their names in order.
//
// # The limits
//
// A run ends with [ErrLimit] when it takes too much time, steps or memory, or
// makes a value that is too large, too deep (event.MaxDepth) or has a number of
// more than 4096 digits: see [Options]. A program cannot catch that. How it is
// kept:
//
//   - gojq asks its context before each step. The context is the account of the
//     run, so that time and steps are kept without a timer or a goroutine, and
//     nothing is left behind when Run returns.
//   - Whatever builds a value is rewritten so that the value is measured, as a
//     tree: one that holds the same part many times over is small in memory but
//     not to those who walk it. No function therefore meets a value larger than
//     Options.Value, give or take what one update puts together.
//   - Functions that make their input grow, or that compare everything with
//     everything, count that before they begin; *, -, / and regular expressions
//     are done by this package.
//
// A single step can therefore not be interrupted, but is bounded: at the default
// limits the worst that was found takes some milliseconds, and a whole run ends
// in well under a second. The memory of a run is Options.Memory and what the
// machine of gojq can fill with its steps meanwhile: 66 MiB was the worst of
// some 140 attacks. Waiting for a processor is not counted as time: a program
// that is good on a quiet machine is good on a busy one.
package jq

package value

import "fmt"

// Numbers that are computed with have bounds: see [CheckNumbers].
const (
	MaxDigits   = 10_000
	MaxExponent = 10_000
)

// CheckNumbers refuses JSON with a number of more than [MaxDigits] digits or an
// exponent beyond [MaxExponent]. Whoever writes numbers out to compute with them
// exactly, as the full validator does, would make of 1e999999 a million digits,
// and fails on 1e9999999. The text must be JSON already; nothing else in it is
// looked at.
func CheckNumbers(text []byte) error {
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '"':
			i = textEnd(text, i)
		case c-'0' <= 9:
			start, exponent, inExponent := i, 0, false
			for ; i < len(text); i++ {
				c := text[i]
				if c-'0' <= 9 {
					if inExponent {
						exponent = min(exponent*10+int(c-'0'), MaxExponent+1)
					}
				} else if c|0x20 == 'e' {
					inExponent = true
				} else if c != '.' && c != '+' && c != '-' {
					break
				}
			}
			if i-start > MaxDigits || exponent > MaxExponent {
				return fmt.Errorf("the number at offset %d is out of bounds: it may have %d digits and an exponent of up to %d", start, MaxDigits, MaxExponent)
			}
		default:
			i++
		}
	}
	return nil
}

// textEnd gives the offset behind the string that begins at i.
func textEnd(text []byte, i int) int {
	for i++; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}

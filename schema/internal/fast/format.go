package fast

// The formats that most events hold. A function here may say false to what has
// the format: the schema's own function is asked then. It must not say true to
// what has not.

func quickFormat(name string) func([]byte) bool {
	switch name {
	case "uuid":
		return isUUID
	case "date":
		return isDate
	case "date-time":
		return isDateTime
	}
	return nil
}

// knownFormats are those that look at strings only.
var knownFormats = map[string]bool{
	"json-pointer": true, "relative-json-pointer": true, "uuid": true, "duration": true, "period": true, "ipv4": true, "ipv6": true,
	"hostname": true, "email": true, "date": true, "time": true, "date-time": true, "uri": true, "iri": true, "uri-reference": true,
	"iri-reference": true, "uri-template": true, "semver": true, "regex": true,
}

func isUUID(b []byte) bool {
	if len(b) != 36 {
		return false
	}
	for i, c := range b {
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
				return false
			}
		}
	}
	return true
}

// two reads two digits, or gives 100.
func two(b []byte, i int) int {
	if b[i]-'0' > 9 || b[i+1]-'0' > 9 {
		return 100
	}
	return int(b[i]-'0')*10 + int(b[i+1]-'0')
}

func isDate(b []byte) bool {
	if len(b) != 10 || b[4] != '-' || b[7] != '-' {
		return false
	}
	century, year, month, day := two(b, 0), two(b, 2), two(b, 5), two(b, 8)
	if century > 99 || year > 99 || month < 1 || month > 12 || day < 1 {
		return false
	}
	// The 29th to 31st depend on month and year; the schema's function knows.
	return day <= 28 || day <= 30 && month != 2 || day == 31 && (month == 1 || month == 3 || month == 5 || month == 7 || month == 8 || month == 10 || month == 12)
}

func isDateTime(b []byte) bool {
	if len(b) < 20 || b[10] != 'T' || b[13] != ':' || b[16] != ':' || !isDate(b[:10]) {
		return false
	}
	// A leap second is left to the schema's function.
	if two(b, 11) > 23 || two(b, 14) > 59 || two(b, 17) > 59 {
		return false
	}
	b = b[19:]
	if b[0] == '.' {
		i := 1
		for i < len(b) && b[i]-'0' <= 9 {
			i++
		}
		if i == 1 {
			return false
		}
		b = b[i:]
	}
	if len(b) == 1 {
		return b[0] == 'Z'
	}
	return len(b) == 6 && (b[0] == '+' || b[0] == '-') && b[3] == ':' && two(b, 1) <= 23 && two(b, 4) <= 59
}

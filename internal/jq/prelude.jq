# Functions of jq that build values, written anew so that what they build is
# measured: these definitions are rewritten like any program. Each uses only
# those before it. Names that begin with _p_ are Go functions of this package.

def map(f): [.[] | f];
def map_values(f): .[] |= f;
def add(f): [f] | add;
def nth($n): .[$n];
def to_entries: . as $o | [keys[] | {key: ., value: $o[.]}];
def from_entries: [.[] | {(.key // .Key // .name // .Name): (if has("value") then .value else .Value end)}] | add // {};
def with_entries(f): [to_entries[] | f] | from_entries;
def walk(f): def go: (if type == "object" then map_values(go) elif type == "array" then map(go) else . end) | f; go;

def min_by(f): _min_by([.[] | [f]]);
def max_by(f): _max_by([.[] | [f]]);
def sort_by(f): [.[] | [f]] as $by | _p_sorting | ($by | _p_sorting) as $x | _sort_by($by);
def group_by(f): [.[] | [f]] as $by | _p_sorting | ($by | _p_sorting) as $x | _group_by($by) | _p_made;
def unique_by(f): [.[] | [f]] as $by | _p_sorting | ($by | _p_sorting) as $x | _unique_by($by) | _p_made;

def paths: path(..) | select(length > 0);
def paths(f): path(.. | select(f)) | select(length > 0);
def leaf_paths: paths(type != "object" and type != "array");
def pick(f): . as $from | reduce path(f) as $p (null; setpath($p; $from | getpath($p)));
def combinations: if length == 0 then [] else .[0][] as $x | [$x] + (.[1:] | combinations) end;
def combinations(n): . as $list | [range(n) | $list] | combinations;
def INDEX(stream; key): reduce stream as $row ({}; .[$row | key | tostring] = $row);
def INDEX(key): INDEX(.[]; key);

def todateiso8601: strftime("%Y-%m-%dT%H:%M:%SZ");
def fromdateiso8601: strptime("%Y-%m-%dT%H:%M:%S%z") | mktime;
def todate: todateiso8601;
def fromdate: fromdateiso8601;

def match($re; $flags): _p_match($re; $flags)[];
def match($re): match($re; null);
def test($re; $flags): _p_test($re; $flags);
def test($re): _p_test($re; null);
def _p_named: [.captures[] | select(.name != null) | {(.name): .string}] | add // {};
def capture($re; $flags): match($re; $flags) | _p_named;
def capture($re): capture($re; null);
def scan($re; $flags): match($re; "g" + $flags) | if (.captures | length) == 0 then .string else [.captures[] | .string] end;
def scan($re): scan($re; null);
def sub($re; text; $flags): . as $in
  | [foreach (match($re; $flags), null) as $m ({next: 0};
      if $m == null then {piece: $in[.next:]}
      else {piece: ($in[.next:$m.offset] + ($m | _p_named | text)), next: ($m.offset + $m.length)} end;
      .piece)]
  | add;
def sub($re; text): sub($re; text; null);
def gsub($re; text; $flags): sub($re; text; "g" + $flags);
def gsub($re; text): sub($re; text; "g");
def split($re; $flags): . as $in
  | [foreach (match($re; "g" + $flags), null) as $m ({next: 0};
      if $m == null then {piece: $in[.next:]} else {piece: $in[.next:$m.offset], next: ($m.offset + $m.length)} end;
      .piece)];
def splits($re; $flags): split($re; $flags)[];
def splits($re): split($re; null)[];

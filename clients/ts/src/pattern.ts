/**
 * Patterns of topics: segments with dots between, `*` for one segment and `**`
 * for any number of them. One that begins with a wildcard never fits the hub's
 * own topics.
 */

function own(first: string | undefined): boolean {
  return first === 'dlq' || first === 'system';
}

/** Whether a topic fits a pattern. */
export function matches(pattern: string, topic: string): boolean {
  if (pattern === topic) return true;
  const p = pattern.split('.');
  const t = topic.split('.');
  if (p[0]!.startsWith('*') && own(t[0])) return false;
  return meet(p, 0, t, 0);
}

/** Whether there can be a topic that fits both. */
export function overlap(a: string, b: string): boolean {
  const p = a.split('.');
  const q = b.split('.');
  if ((p[0]!.startsWith('*') && own(q[0])) || (q[0]!.startsWith('*') && own(p[0]))) return false;
  return meet(p, 0, q, 0);
}

function meet(p: string[], i: number, q: string[], j: number): boolean {
  if (i === p.length) return q.slice(j).every((s) => s === '**');
  if (j === q.length) return p.slice(i).every((s) => s === '**');
  const a = p[i]!;
  const b = q[j]!;
  // "**" stands for nothing, or takes one segment of the other and stays.
  if (a === '**') return meet(p, i + 1, q, j) || meet(p, i, q, j + 1);
  if (b === '**') return meet(p, i, q, j + 1) || meet(p, i + 1, q, j);
  return (a === '*' || b === '*' || a === b) && meet(p, i + 1, q, j + 1);
}

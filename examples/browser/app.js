// The latest state of every process, as it changes, and a form to publish.
import { Client } from 'promethean-client';

const at = (id) => document.getElementById(id);
const url = new URLSearchParams(location.search).get('hub') ?? 'http://127.0.0.1:7070';

const hub = new Client(url, {
  onStatus: ({ state, error }) => {
    at('status').textContent = state;
    at('status').title = error?.message ?? '';
  },
});

// What the page shows of an event goes in as text: a payload is not to be trusted.
function show(event) {
  const key = event.key ?? event.id;
  let row = [...at('states').rows].find((r) => r.dataset.key === key);
  if (!row) {
    row = at('states').insertRow();
    row.dataset.key = key;
    for (let i = 0; i < 6; i++) row.insertCell();
  }
  const { host, name, pid, status } = event.payload ?? {};
  row.dataset.status = status ?? '';
  [host, name, pid, status, event.seq, new Date(event.ts).toLocaleTimeString()].forEach((value, i) => {
    row.cells[i].textContent = value ?? '';
  });
}

at('form').addEventListener('submit', async (submit) => {
  submit.preventDefault();
  const result = at('result');
  try {
    const key = at('key').value;
    const { seq } = await hub.publish(at('topic').value, JSON.parse(at('payload').value), key ? { key } : {});
    result.className = '';
    result.textContent = `stored as seq ${seq}`;
  } catch (error) {
    result.className = 'error';
    result.textContent = error.message;
  }
});

hub.ready().catch(problem);

function problem(error) {
  at('problem').hidden = false;
  at('problem').textContent = error.message;
}

try {
  // From the first event on; after a lost connection it goes on by itself.
  for await (const event of hub.tail('process.state', { from: 'earliest' })) show(event);
} catch (error) {
  problem(error);
}

// The live part of the status page: takes the fragments and the ends of the
// lines that the server sends once a second, and draws the charts. Without it
// the page is whole, but stands still.
'use strict';

const KEEP = 450; // steps of a line, as the server keeps them
const series = new Map(); // by query
const $ = (id) => document.getElementById(id);

// ---- live updates -------------------------------------------------------

// morph makes `from` like `to` with as few changes as possible, so that focus,
// open folds, selections and scroll positions stay.
function morph(from, to) {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    from.replaceWith(to.cloneNode(true));
    return;
  }
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  for (const a of [...from.attributes]) if (!to.hasAttribute(a.name)) from.removeAttribute(a.name);
  for (const a of to.attributes) if (from.getAttribute(a.name) !== a.value) from.setAttribute(a.name, a.value);
  morphChildren(from, to);
}

function morphChildren(from, to) {
  const have = [...from.childNodes], want = [...to.childNodes];
  want.forEach((node, i) => (have[i] ? morph(have[i], node) : from.append(node.cloneNode(true))));
  have.slice(want.length).forEach((node) => node.remove());
}

function apply(patch) {
  for (const [id, html] of Object.entries(patch.fragments)) {
    const target = $(id);
    if (!target) continue;
    const parsed = document.createElement('template');
    parsed.innerHTML = html; // rendered and escaped by the server, from this origin only
    morphChildren(target, parsed.content);
  }
  for (const [query, tail] of Object.entries(patch.series)) merge(query, tail);
  requestAnimationFrame(draw);
  say('on', 'Live');
}

// merge lays the newer end of a line over what is there.
function merge(query, tail) {
  const lines = Object.keys(tail).filter((k) => Array.isArray(tail[k]));
  let s = series.get(query);
  const at = s ? Math.round((tail.start - s.start) / tail.step_seconds) : -1;
  if (!s || at < 0 || at > s.input.length) {
    series.set(query, tail);
    return;
  }
  for (const k of lines) s[k] = s[k].slice(0, at).concat(tail[k]).slice(-KEEP);
  s.start = tail.start + (tail.input.length - s.input.length) * tail.step_seconds;
}

let said = '';
function say(state, text) {
  const box = $('live');
  if (said === text) return; // a live region is spoken when it changes
  said = text;
  box.dataset.state = state;
  $('live-text').textContent = text;
}

let source = null;
function connect() {
  if (source || document.hidden) return;
  source = new EventSource('/events');
  source.addEventListener('patch', (e) => apply(JSON.parse(e.data)));
  source.addEventListener('bye', () => {
    source.close();
    source = null;
    say('off', 'The pipeline has stopped');
    setTimeout(connect, 5000);
  });
  source.onerror = () => {
    if (said !== 'The pipeline has stopped') say('off', 'Reconnecting…');
    if (source && source.readyState === EventSource.CLOSED) {
      source.close();
      source = null;
      setTimeout(connect, 3000);
    }
  };
}

// A page that nobody sees costs the pipeline nothing.
document.addEventListener('visibilitychange', () => {
  if (document.hidden && source) {
    source.close();
    source = null;
    said = '';
  }
  connect();
});

// ---- charts -------------------------------------------------------------

const NS = 'http://www.w3.org/2000/svg';
function svg(name, attributes, ...children) {
  const e = document.createElementNS(NS, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

const grouped = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat('en-US', { maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat('en-US', { notation: 'compact', maximumFractionDigits: 1 });
const number = (v) => (v < 10 ? fine : grouped).format(v);
const length = (s) => (s < 1 ? grouped.format(s * 1000) + ' ms' : s < 120 ? fine.format(s) + ' s' : s < 7200 ? fine.format(s / 60) + ' min' : s < 172800 ? fine.format(s / 3600) + ' h' : fine.format(s / 86400) + ' d');
const units = {
  rate: { tick: (v) => compact.format(v), text: (v) => number(v) + '/s' },
  count: { tick: (v) => compact.format(v), text: (v) => grouped.format(v) },
  ms: { tick: (v) => length(v / 1000), text: (v) => length(v / 1000) },
  s: { tick: length, text: length },
};

// ceiling is the end of the axis above v, and its step: 1, 2 or 5 times a power
// of ten, or a round length of time.
function ceiling(v, unit) {
  if (!(v > 0)) return { top: 1, step: 1 };
  const raw = v / 3, power = 10 ** Math.floor(Math.log10(raw));
  const times = raw > 10 && unit === units.s ? [15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800] : [];
  const step = times.find((s) => s >= raw) ?? [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw);
  return { top: Math.ceil(v / step) * step, step };
}

const M = { left: 54, right: 12, top: 10, bottom: 22 };
const charts = [...document.querySelectorAll('.chart')].map((figure) => {
  const plot = figure.querySelector('.plot');
  const c = { figure, plot, key: figure.dataset.key, unit: units[figure.dataset.unit], at: null };
  c.tip = Object.assign(document.createElement('div'), { className: 'tip', hidden: true });
  plot.replaceChildren(c.tip);
  plot.tabIndex = 0;
  plot.setAttribute('role', 'img');
  plot.setAttribute('aria-label', figure.dataset.title);
  const point = (time, aloud) => {
    c.at = time;
    drawChart(c);
    if (aloud) $('chart-say').textContent = time === null ? '' : c.tip.textContent;
  };
  plot.addEventListener('pointermove', (e) => c.scale && point(c.scale.time(e.clientX - plot.getBoundingClientRect().left)));
  plot.addEventListener('pointerleave', () => point(null));
  plot.addEventListener('blur', () => point(null));
  plot.addEventListener('keydown', (e) => {
    if (!c.scale) return;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -15, PageDown: 15 }[e.key];
    if (step) point(Math.min(Math.max((c.at ?? c.scale.to) + step * c.scale.step, c.scale.from), c.scale.to), true);
    else if (e.key === 'Home') point(c.scale.from, true);
    else if (e.key === 'End') point(c.scale.to, true);
    else if (e.key === 'Escape') point(null, true);
    else return;
    e.preventDefault();
  });
  return c;
});

function draw() {
  charts.forEach(drawChart);
}

function drawChart(c) {
  const width = c.plot.clientWidth, height = c.plot.clientHeight;
  const all = [...series.entries()].filter(([, s]) => s.input.length > 1);
  if (!width || !all.length) return;
  const step = all[0][1].step_seconds;
  const to = Math.max(...all.map(([, s]) => s.start + (s.input.length - 1) * step));
  const from = Math.min(Math.max(Math.min(...all.map(([, s]) => s.start)), to - (KEEP - 1) * step), to - 30 * step);
  const most = Math.max(...all.flatMap(([, s]) => s[c.key].filter((v) => v !== null)), 0);
  const axis = ceiling(most, c.unit);
  const x = (t) => M.left + ((t - from) / (to - from)) * (width - M.left - M.right);
  const y = (v) => height - M.bottom - (v / axis.top) * (height - M.top - M.bottom);
  c.scale = { from, to, step, time: (px) => Math.round(Math.min(Math.max(from + ((px - M.left) / (width - M.left - M.right)) * (to - from), from), to) / step) * step };

  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, 'aria-hidden': 'true', focusable: 'false' });
  for (let v = 0; v <= axis.top * 1.001; v += axis.step) {
    root.append(svg('path', { class: 'rule', d: `M${M.left} ${y(v)}H${width - M.right}` }),
      svg('text', { class: 'tick', x: M.left - 6, y: y(v) + 4, 'text-anchor': 'end' }, c.unit.tick(v)));
  }
  const span = to - from, every = [30, 60, 120, 300].find((e) => span / e <= width / 90) || 300;
  for (let t = Math.ceil(from / every) * every; t <= to; t += every) {
    root.append(svg('text', { class: 'tick', x: Math.min(x(t), width - 18), y: height - 5, 'text-anchor': 'middle' }, new Date(t * 1000).toISOString().slice(11, every < 60 ? 19 : 16)));
  }
  all.forEach(([, s], i) => {
    let line = '', last = null;
    s[c.key].forEach((v, n) => {
      const t = s.start + n * step;
      if (v === null || t < from) return;
      // Steps without a batch are bridged; a longer silence is a gap.
      line += (last !== null && t - last <= 60 ? 'L' : 'M') + x(t).toFixed(1) + ' ' + y(v).toFixed(1);
      last = t;
    });
    root.append(svg('path', { class: `line s${i}`, d: line }));
  });
  const latest = all.map(([q, s]) => [q, valueAt(s, c.key, to)]).filter(([, v]) => v !== null);
  c.plot.setAttribute('aria-label', `${c.figure.dataset.title}, last ${length(to - from)}. ` + latest.map(([q, v]) => `${q}: ${c.unit.text(v)}`).join(', ') + '. Arrow keys read values.');
  if (c.at !== null) {
    root.append(svg('path', { class: 'cursor', d: `M${x(c.at)} ${M.top}V${height - M.bottom}` }));
    c.tip.replaceChildren(Object.assign(document.createElement('b'), { textContent: new Date(c.at * 1000).toISOString().slice(11, 19) + ' UTC' }),
      ...all.map(([q, s], i) => {
        const v = valueAt(s, c.key, c.at);
        if (v !== null) root.append(svg('circle', { class: `point s${i}`, cx: x(c.at), cy: y(v), r: 3.5 }));
        return Object.assign(document.createElement('span'), { className: `s${i}`, textContent: ` ${q} ${v === null ? '–' : c.unit.text(v)}` });
      }));
    c.tip.hidden = false;
    const left = x(c.at) + 10;
    c.tip.style.left = Math.max(Math.min(left, width - c.tip.offsetWidth - 4), 4) + 'px';
  } else {
    c.tip.hidden = true;
  }
  c.plot.querySelector('svg')?.remove();
  c.plot.prepend(root);
}

// valueAt is the last value at or shortly before t.
function valueAt(s, key, t) {
  const at = Math.min(Math.round((t - s.start) / s.step_seconds), s[key].length - 1);
  for (let n = at; n >= 0 && n > at - 15; n--) if (s[key][n] !== null && s[key][n] !== undefined) return s[key][n];
  return null;
}

new ResizeObserver(() => requestAnimationFrame(draw)).observe($('charts'));

// A link to a fold opens it.
function openTarget() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = target && target.closest('details');
  if (fold) {
    fold.open = true;
    fold.querySelector('summary').focus({ preventScroll: true });
    fold.scrollIntoView({ block: 'center' });
  }
}
addEventListener('hashchange', openTarget);
openTarget();
connect();

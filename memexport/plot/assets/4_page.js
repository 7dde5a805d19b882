// The page: one device on view, one moment pinned.
const devices = recording.devices.map(decoded), chart = new Chart($('chart')), tree = new Tree($('tree'), $('crumbs'));
let device = devices[0], drawing = 0;

function redraw() {
  if (!drawing) drawing = requestAnimationFrame(() => { drawing = 0; if (device) chart.draw(); });
}

function show(chosen) {
  device = chosen;
  chart.show(device);
  chart.hidden.clear();
  for (const button of $('devices').children) button.setAttribute('aria-pressed', button.value === device.name);
  show_figures();
  show_legend();
  pin(null);
  $('tree-card').hidden = !device.groups.length;
  $('live-card').parentElement.classList.toggle('alone', !device.groups.length);
  tree.show(device);
  $('tree-title').textContent = device.has_modules ? 'Modules at the peak' : 'What made the peak';
  zoomed();
}

function show_figures() {
  const {peak} = device;
  const facts = [['Peak', bytes(peak.allocated)], ['When', when(peak, peak.time)], ['Operator', peak.operator && operator_label(peak.operator)],
                 ['Module', peak.module], ['Reserved then', peak.reserved === null ? null : bytes(peak.reserved)]];
  $('figures').replaceChildren(...facts.filter(([, value]) => value).map(([name, value]) =>
    element('dl', {children: [element('dt', {textContent: name}), element('dd', {textContent: shortened(value, 90), title: value})]})));
}

function when({time, step, phase}, range) {
  return [moment_in(time, range), step >= 0 ? `step ${step}` : '', phase ?? ''].filter(Boolean).join(' · ');
}

// The legend doubles as the read-out of the pointer, the pin, or else the peak.
function show_legend() {
  const rows = device.categories.map((name, layer) => legend_row(layer, name, {background: recording.colours[name]}));
  rows.reverse();
  if (device.has_reserved) rows.unshift(legend_row('reserved', 'reserved', {borderColor: recording.counters.reserved}, 'swatch line'));
  const sum = element('div', {className: 'row sum', children: [element('span'), element('span', {textContent: 'allocated'}), number('allocated'), share('allocated')]});
  $('legend').replaceChildren(...rows.map(row => element('li', {children: [row]})), element('li', {children: [sum]}));
}

const number = key => { const made = element('span', {className: 'number'}); made.dataset.bytes = key; return made; };
const share = key => { const made = element('span', {className: 'share'}); made.dataset.share = key; return made; };

function legend_row(key, name, style, className = 'swatch') {
  const row = element('button', {type: 'button', title: `Hide or show ${name}`, children: [
    element('span', {className, style}), element('span', {className: 'name', textContent: name}), number(key), share(key)]});
  row.setAttribute('aria-pressed', !chart.hidden.has(key));
  row.onclick = () => {
    if (!chart.hidden.delete(key)) chart.hidden.add(key);
    row.setAttribute('aria-pressed', !chart.hidden.has(key));
    redraw();
  };
  return row;
}

function read_out(bin, title) {
  $('at').textContent = title;
  const allocated = device.allocated[bin];
  for (const span of $('legend').querySelectorAll('[data-bytes], [data-share]')) {
    const key = span.dataset.bytes ?? span.dataset.share;
    const size = key === 'allocated' ? allocated : key === 'reserved' ? device.reserved[bin] : device.stack[key][bin];
    const known = allocated >= 0 && size >= 0;
    if ('bytes' in span.dataset) span.textContent = known ? bytes(size) : '–';
    else span.textContent = known && key !== 'reserved' && key !== 'allocated' ? percent(size, allocated) : '';
  }
}

const bin_of = time => Math.max(0, Math.min(recording.bins - 1, Math.floor((time - FIRST) / WIDTH)));

function at_rest() {
  const {time} = pinned;
  read_out(bin_of(time), pinned === device.peak ? 'At the peak' : `At ${moment_in(time, chart.range_ns)}`);
}

// What was live then.
let pinned = null;

function pin(moment_) {
  pinned = moment_ ?? device.peak;
  chart.pin = moment_ ? moment_.time : null;
  const total = pinned.allocated, is_peak = pinned === device.peak;
  $('live-title').textContent = is_peak ? 'Live at the peak' : `Live at ${moment_in(pinned.time, chart.range_ns)}`;
  $('live-note').textContent = [when(pinned, is_peak ? pinned.time : chart.range_ns), bytes(total), pinned.operator && operator_label(pinned.operator), pinned.module,
    is_peak ? '' : note_of_window()].filter(Boolean).join(' · ');
  $('to-peak').hidden = is_peak;
  const rows = [], listed = Math.min(20, pinned.groups.length / 2);
  let others = pinned.others;
  for (let n = 0; n < pinned.groups.length; n += 2) {
    if (n / 2 >= listed) { others += pinned.groups[n + 1]; continue; }
    const group = device.groups[pinned.groups[n]], category = device.names[group[0]];
    const path = group[1] === 'code' ? text(group[2]).split(' › ').reverse() : [maker_of(group, category)];
    // The code that asked comes first; what called it, and the category, are of second rank.
    const about = [category === 'unattributed' ? '' : category, path[1] && `from ${path[1]}`].filter(Boolean).join(', ');
    rows.push([path[0], about, pinned.groups[n + 1], category]);
  }
  if (pinned.unexplained) rows.push(['unattributed', 'no allocation explains it', pinned.unexplained, 'unattributed']);
  rows.sort((a, b) => b[2] - a[2]);
  if (others) rows.push(['everything else', '', others, null]);
  const most = Math.max(...rows.map(row => row[2]), 1);
  $('live').replaceChildren(...rows.map(row => live_row(...row, most, total)));
  at_rest();
  redraw();
}

function maker_of([, maker, name], category) {
  const label = text(name);
  return maker === 'operator' ? operator_label(label) : label ?? unnamed(category);
}

// Lists are kept of the highest moments only, so a click shows the one of its window.
function note_of_window() {
  const ns = recording.window * WIDTH;
  return HAS_CLOCK ? `the highest moment of ${moment_in(ns, ns)} here` : 'the highest moment here';
}

function live_row(name, what, size, category, most, total) {
  return element('li', {children: [
    element('span', {className: 'who', title: name, children: [shortened(name, 90), element('span', {className: 'what', textContent: what})]}),
    element('span', {className: 'number', textContent: bytes(size)}),
    element('span', {className: 'share', textContent: percent(size, total)}),
    element('div', {className: 'bar', children: [element('i', {style: {
      width: `${100 * size / most}%`, background: category ? recording.colours[category] : colour('--muted')}})]}),
  ]});
}

// The moment that speaks for a bin: the nearest of its window, else the last one before it.
function moment_for(bin) {
  const window_ = Math.floor(bin / recording.window), time = FIRST + bin * WIDTH;
  if (bin === bin_of(device.peak.time)) return device.peak;
  const inside = device.moments.filter(moment_ => Math.floor(bin_of(moment_.time) / recording.window) === window_);
  if (inside.length) return inside.reduce((a, b) => (Math.abs(b.time - time) < Math.abs(a.time - time) ? b : a));
  return device.moments.findLast(moment_ => moment_.time <= time) ?? device.moments[0] ?? device.peak;
}

function hover(x) {
  chart.cursor = x;
  if (x === null) { $('tip').hidden = true; at_rest(); redraw(); return; }
  const bin = chart.bin_at(x), time = FIRST + bin * WIDTH, total = device.allocated[bin];
  const phase = recording.phases[device.phase[bin]]?.name ?? null, title = when({time, step: device.step[bin], phase}, chart.range_ns);
  const near = recording.marks.filter(mark => Math.abs(chart.x_of((mark[0] - FIRST) / WIDTH) - x) < 5).slice(0, 4);
  const operator = text(device.operator[bin]), module_ = text(device.module[bin]), after = device.held[bin] ? 'after ' : '';
  const lowest = device.lowest[bin], moves = lowest >= 0 && lowest < total;
  const rows = [title, total < 0 ? 'nothing known yet' : moves ? `lowest here ${bytes(lowest)}` : '', operator && after + shortened(operator_label(operator), 90),
                module_ && shortened(module_, 90), ...near.map(([, name, failed]) => (failed ? 'out of memory' : `marker ${shortened(name, 60)}`))];
  $('tip').replaceChildren(element('b', {textContent: total < 0 ? '' : bytes(total)}),
    ...rows.filter(Boolean).map(row => element('div', {textContent: row})));
  $('tip').hidden = false;
  const wide = $('tip').offsetWidth, left = x + 14 + wide > chart.width ? x - 14 - wide : x + 14;
  $('tip').style.transform = `translate(${Math.max(0, left)}px, ${MARGIN.top + 6}px)`;
  read_out(bin, `At ${moment_in(time, chart.range_ns)}`);
  redraw();
}

function zoomed() {
  $('reset').hidden = !chart.zoomed;
  redraw();
}

function listen() {
  const canvas = $('chart'), x_in = event => event.clientX - canvas.getBoundingClientRect().left;
  const inside = x => Math.max(MARGIN.left, Math.min(chart.width - MARGIN.right - 1, x));
  canvas.onpointerdown = event => { if (event.button === 0) { chart.drag = [inside(x_in(event)), inside(x_in(event))]; canvas.setPointerCapture(event.pointerId); } };
  canvas.onpointermove = event => { if (chart.drag) chart.drag[1] = inside(x_in(event)); hover(inside(x_in(event))); };
  canvas.onpointerleave = () => { if (!chart.drag) hover(null); };
  canvas.onpointercancel = () => { chart.drag = null; hover(null); };
  canvas.onpointerup = () => {
    if (!chart.drag) return;
    const [from, to] = [...chart.drag].sort((a, b) => a - b);
    chart.drag = null;
    if (to - from > 5) { chart.zoom(chart.at(from), chart.at(to)); zoomed(); } else pin(moment_for(chart.bin_at(to)));
  };
  canvas.ondblclick = show_all;
  canvas.onblur = () => hover(null);
  canvas.onkeydown = key_down;
  $('reset').onclick = show_all;
  $('to-peak').onclick = () => pin(null);
  $('theme').onclick = () => set_theme(is_dark() ? 'light' : 'dark');
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { name_theme(); redraw(); });
  new ResizeObserver(() => { redraw(); tree.draw(); }).observe($('tree'));
  new ResizeObserver(redraw).observe(canvas);
}

function show_all() { chart.zoom(0, recording.bins); zoomed(); }

function key_down(event) {
  const move = {ArrowLeft: -1, ArrowRight: 1}[event.key], [begin, end] = chart.view;
  const x = chart.cursor ?? chart.x_of(bin_of(pinned.time) + 0.5), middle = chart.at(x);
  if (move) hover(Math.max(MARGIN.left, Math.min(chart.width - MARGIN.right - 1, x + move * (event.shiftKey ? 40 : 4))));
  else if (event.key === 'Enter' || event.key === ' ') pin(moment_for(chart.bin_at(x)));
  else if (event.key === '+' || event.key === '=') { chart.zoom(middle - (end - begin) / 4, middle + (end - begin) / 4); zoomed(); }
  else if (event.key === '-') { chart.zoom(middle - (end - begin), middle + (end - begin)); zoomed(); }
  else if (event.key === 'Escape') { hover(null); pin(null); show_all(); }
  else return;
  event.preventDefault();
  $('read-out').textContent = $('tip').hidden ? $('live-note').textContent : [...$('tip').children].map(line => line.textContent).join(', ');
}

const is_dark = () => (document.documentElement.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';

function set_theme(name) { document.documentElement.dataset.theme = name; name_theme(); redraw(); pin(pinned === device?.peak ? null : pinned); }

function name_theme() { $('theme').textContent = is_dark() ? 'Light' : 'Dark'; }

function begin() {
  $('title').textContent = recording.title;
  $('facts').textContent = recording.facts.join(' · ');
  $('notes').replaceChildren(...recording.notes.map(note => element('p', {textContent: note})));
  name_theme();
  if (!devices.length) {
    for (const section of document.querySelectorAll('section')) section.hidden = true;
    $('empty').hidden = false;
    $('empty').textContent = 'Nothing in this recording says how much memory a device had in use.';
    $('theme').onclick = () => { document.documentElement.dataset.theme = is_dark() ? 'light' : 'dark'; name_theme(); };
    return;
  }
  $('devices').hidden = devices.length < 2;
  $('devices').append(...devices.map(each => element('button', {type: 'button', value: each.name, onclick: () => show(each),
    children: [each.name, element('small', {textContent: bytes(each.peak.allocated)})]})));
  listen();
  show(device);
}

begin();

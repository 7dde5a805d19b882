// What the page was written with: the recording in JSON, its columns coded as differences.
const recording = JSON.parse(document.getElementById('recording').textContent);
const WIDTH = recording.width, FIRST = recording.first, HAS_CLOCK = recording.clock === 'unix';
const $ = id => document.getElementById(id);
const text = id => (id ? recording.strings[id - 1] : null);

function sums(column) {
  let value = 0;
  return Float64Array.from(column, change => (value += change));
}

function decoded(device) {
  const device_ = {...device};
  for (const name of ['allocated', 'lowest', 'reserved', 'operator', 'module', 'phase', 'strip', 'step', 'held'])
    device_[name] = sums(device[name]);
  device_.stack = device.stack.map(sums);
  device_.moments = device.moments.map(moment);
  device_.peak = moment(device.peak);
  return device_;
}

function moment([time, allocated, reserved, operator, module, phase, step, others, unexplained, groups]) {
  return {time, allocated, reserved, operator: text(operator), module: text(module),
          phase: recording.phases[phase]?.name ?? null, step, others, unexplained, groups};
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

function bytes(count) {
  let unit = 0, size = count;
  while (size >= 1023.995 && unit < UNITS.length - 1) { size /= 1024; unit++; }
  return unit ? `${size.toFixed(2)} ${UNITS[unit]}` : `${size} B`;
}

const TIME_UNITS = [[1, 'ns'], [1e3, 'µs'], [1e6, 'ms'], [1e9, 's']];

// A time, to about a thousandth of the range that is on view.
function moment_in(ns, range) {
  if (!HAS_CLOCK) return `event ${Math.round(ns / recording.index).toLocaleString('en')}`;
  const [size, unit] = unit_of(Math.max(ns, range));
  const digits = Math.max(0, Math.min(9, Math.ceil(Math.log10(size / Math.max(range / 1000, 1)))));
  return `${(ns / size).toFixed(digits)} ${unit}`;
}

function unit_of(ns) {
  return TIME_UNITS.findLast(([size]) => ns >= size) ?? TIME_UNITS[0];
}

function percent(part, whole) {
  if (!whole) return '';
  const share = 100 * part / whole;
  return share > 0 && share < 1 ? '<1 %' : `${Math.round(share)} %`;
}

// Steps between ticks: powers of two of bytes, and 1, 2 or 5 times a power of ten of the rest.
const byte_step = (range, count) => 2 ** Math.max(0, Math.ceil(Math.log2(range / count)));

function decimal_step(range, count) {
  const rough = range / count, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999);
}

// An operator as torch.profiler writes it.
function operator_label(name) {
  const parts = name.split('.');
  return parts.length === 3 && parts.every(Boolean) ? parts.slice(0, 2).join('::') : name;
}

function element(tag, {children = [], style = {}, ...fields} = {}) {
  const made = Object.assign(document.createElement(tag), fields);
  Object.assign(made.style, style);
  made.append(...children);
  return made;
}

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Black or white, whichever is easier to read on the colour.
function ink_on(hex) {
  const [r, g, b] = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16) / 255)
    .map(v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? '#0b0d10' : '#ffffff';
}

// The chart: categories on each other over time, drawn anew for every view from the bins' highest moments.
const MARGIN = {left: 62, right: 10, top: 30, bottom: 46};
const STRIP = 12, LEAST_STEP = 6, MOST_STEP_LABELS = 40, SMALL = '11px', FONT = 'system-ui, "Liberation Sans", sans-serif';

class Chart {
  constructor(canvas) {
    this.canvas = canvas;
    this.hidden = new Set();
    this.cursor = this.pin = this.drag = null;
  }

  show(device) {
    this.device = device;
    this.all = [0, recording.bins];
    this.view = this.all;
  }

  get zoomed() { return this.view[1] - this.view[0] < this.all[1] - this.all[0]; }
  get range_ns() { return (this.view[1] - this.view[0]) * WIDTH; }

  zoom(begin, end) {
    const least = Math.min(8, recording.bins), middle = (begin + end) / 2;
    const half = Math.max(least, end - begin) / 2;
    begin = Math.max(0, Math.min(middle - half, recording.bins - 2 * half));
    this.view = [begin, Math.min(recording.bins, begin + 2 * half)];
  }

  // Pixels and bins.
  x_of(bin) { return MARGIN.left + (bin - this.view[0]) / (this.view[1] - this.view[0]) * this.inner; }
  at(x) { return this.view[0] + (x - MARGIN.left) / this.inner * (this.view[1] - this.view[0]); }
  y_of(size) { return this.height - MARGIN.bottom - size / this.top * (this.height - MARGIN.top - MARGIN.bottom); }

  // The highest bin of those that a pixel covers: nothing that is narrower than a pixel is lost.
  highest(begin, end) {
    let best = Math.min(Math.max(0, Math.floor(begin)), recording.bins - 1);
    for (let bin = best + 1; bin < Math.min(end, recording.bins); bin++)
      if (this.device.allocated[bin] > this.device.allocated[best]) best = bin;
    return best;
  }

  bin_at(x) {
    const half = (this.at(x + 1) - this.at(x)) / 2, middle = this.at(x);
    return this.highest(middle - half, Math.ceil(middle + half));
  }

  draw() {
    const box = this.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    this.width = box.width;
    this.height = box.height;
    this.inner = Math.max(1, this.width - MARGIN.left - MARGIN.right);
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    const pen = this.pen = this.canvas.getContext('2d');
    pen.scale(ratio, ratio);
    pen.font = `${SMALL} ${FONT}`;
    this.columns = this.pixel_columns(ratio);
    this.scale_up();
    this.draw_grid();
    this.draw_steps();
    this.draw_stack();
    this.draw_reserved();
    this.draw_phases();
    this.draw_time();
    this.draw_marks();
    this.draw_peak();
    this.draw_lines();
  }

  pixel_columns(ratio) {
    const count = Math.max(1, Math.round(this.inner * ratio)), per = (this.view[1] - this.view[0]) / count;
    return Array.from({length: count}, (_, n) => {
      const begin = this.view[0] + n * per;
      return {x: MARGIN.left + n / ratio, bin: this.highest(begin, Math.ceil(begin + per - 1e-9))};
    });
  }

  scale_up() {
    const {allocated, reserved, stack} = this.device;
    const drawn = stack.filter((_, layer) => !this.hidden.has(layer));
    let top = 0;
    for (const {bin} of this.columns) {
      const sum = this.hidden.size ? drawn.reduce((size, layer) => size + layer[bin], 0) : allocated[bin];
      top = Math.max(top, sum, this.hidden.has('reserved') ? 0 : reserved[bin]);
    }
    this.top = Math.max(top * 1.04, 1);
  }

  draw_grid() {
    const {pen} = this, step = byte_step(this.top, 6);
    const unit = Math.min(UNITS.length - 1, Math.floor(Math.log2(Math.max(1, this.top)) / 10));
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    for (let size = 0; size <= this.top; size += step) {
      const y = Math.round(this.y_of(size)) + 0.5;
      this.line(MARGIN.left, y, this.width - MARGIN.right, y, colour('--line'));
      pen.fillStyle = colour('--muted');
      pen.fillText(size ? `${+(size / 1024 ** unit).toFixed(4)} ${UNITS[unit]}` : '0', MARGIN.left - 8, y);
    }
  }

  draw_stack() {
    const {pen, columns, device} = this, base = new Float64Array(columns.length);
    const end = this.width - MARGIN.right;
    device.categories.forEach((name, layer) => {
      if (this.hidden.has(layer)) return;
      const sizes = device.stack[layer], lower = columns.map((_, n) => this.y_of(base[n]));
      const upper = columns.map(({bin}, n) => this.y_of(base[n] += Math.max(0, sizes[bin])));
      pen.beginPath();
      columns.forEach(({x}, n) => { pen.lineTo(x, upper[n]); pen.lineTo(columns[n + 1]?.x ?? end, upper[n]); });
      for (let n = columns.length - 1; n >= 0; n--) {
        pen.lineTo(columns[n + 1]?.x ?? end, lower[n]);
        pen.lineTo(columns[n].x, lower[n]);
      }
      pen.fillStyle = recording.colours[name];
      pen.fill();
    });
  }

  draw_reserved() {
    if (!this.device.has_reserved || this.hidden.has('reserved')) return;
    const {pen, columns} = this;
    pen.beginPath();
    for (const [n, {x, bin}] of columns.entries()) {
      if (this.device.reserved[bin] < 0) continue;
      const y = this.y_of(this.device.reserved[bin]);
      pen.lineTo(x, y);
      pen.lineTo(columns[n + 1]?.x ?? this.width - MARGIN.right, y);
    }
    pen.lineWidth = 1.5;
    pen.setLineDash([5, 3]);
    pen.strokeStyle = recording.counters.reserved;
    pen.stroke();
    pen.setLineDash([]);
  }

  // Where `step` or `phase` has one value: [begin, end, value], in bins.
  *runs(column) {
    const last = Math.min(recording.bins, Math.ceil(this.view[1]));
    for (let begin = Math.floor(this.view[0]), bin = begin + 1; bin <= last; bin++)
      if (bin === last || column[bin] !== column[begin]) { yield [begin, bin, column[begin]]; begin = bin; }
  }

  draw_steps() {
    const runs = [...this.runs(this.device.step)].filter(([, , step]) => step >= 0);
    if (runs.length > 4 * MOST_STEP_LABELS) return;
    let free = 0;
    this.pen.textAlign = 'left';
    this.pen.textBaseline = 'alphabetic';
    for (const [begin, , step] of runs) {
      const x = Math.max(MARGIN.left, Math.round(this.x_of(begin))) + 0.5;
      this.line(x, MARGIN.top - 14, x, this.height - MARGIN.bottom, colour('--line'));
      const label = `step ${step}`;
      if (x < free || x + this.pen.measureText(label).width > this.width - MARGIN.right) continue;
      this.pen.fillStyle = colour('--muted');
      this.pen.fillText(label, x + 4, MARGIN.top - 6);
      free = x + this.pen.measureText(label).width + 14;
    }
  }

  draw_phases() {
    const runs = [...this.runs(this.device.strip)], {pen} = this, y = this.height - MARGIN.bottom + 4;
    // Where a step has but a few bins, or a phase a few pixels, their phases are noise.
    const steps = [...this.runs(this.device.step)].length;
    if (steps > 1 && (this.view[1] - this.view[0]) / steps < LEAST_STEP) return;
    if (!runs.some(([, , phase]) => phase) || runs.length > this.inner / 3) return;
    pen.textAlign = 'center';
    pen.textBaseline = 'middle';
    for (const [begin, end, phase] of runs) {
      if (!phase) continue;
      const {name, shade} = recording.phases[phase];
      const left = Math.max(MARGIN.left, this.x_of(begin)), right = Math.min(this.width - MARGIN.right, this.x_of(end));
      pen.globalAlpha = shade;
      pen.fillStyle = colour('--ink');
      pen.fillRect(left, y, Math.max(0.5, right - left), STRIP);
      pen.globalAlpha = 1;
      if (right - left < pen.measureText(name).width + 6) continue;
      pen.fillStyle = colour(shade > 0.5 ? '--surface' : '--ink');
      pen.fillText(name, (left + right) / 2, y + STRIP / 2 + 0.5);
    }
  }

  draw_time() {
    const {pen} = this, scale = HAS_CLOCK ? 1 : recording.index;
    const begin = (FIRST + this.view[0] * WIDTH) / scale, range = this.range_ns / scale;
    const step = Math.max(HAS_CLOCK ? 0 : 1, decimal_step(range, Math.max(2, this.inner / 110)));
    const [size, unit] = HAS_CLOCK ? unit_of(begin + range) : [1, ''];
    const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
    pen.textBaseline = 'alphabetic';
    pen.fillStyle = colour('--muted');
    for (let tick = Math.ceil(begin / step) * step; tick <= begin + range; tick += step) {
      const x = this.x_of((tick * scale - FIRST) / WIDTH), label = (tick / size).toFixed(digits);
      this.line(Math.round(x) + 0.5, this.height - 28, Math.round(x) + 0.5, this.height - 24, colour('--muted'));
      pen.textAlign = x + 24 > this.width - MARGIN.right ? 'right' : x - 24 < MARGIN.left ? 'left' : 'center';
      pen.fillText(HAS_CLOCK ? `${label} ${unit}` : Number(label).toLocaleString('en'), x, this.height - 11);
    }
    pen.textAlign = 'right';
    if (!HAS_CLOCK) pen.fillText('event', MARGIN.left - 8, this.height - 11);
  }

  draw_marks() {
    for (const [time, , failed] of recording.marks) {
      const x = Math.round(this.x_of((time - FIRST) / WIDTH)) + 0.5;
      if (x < MARGIN.left || x > this.width - MARGIN.right) continue;
      const ink = failed ? recording.failed : colour('--muted');
      if (failed) this.line(x, MARGIN.top - 8, x, this.height - MARGIN.bottom, ink, 1.5);
      this.pen.fillStyle = ink;
      this.pen.beginPath();
      for (const [dx, dy] of [[-4, -8], [4, -8], [0, -1]]) this.pen.lineTo(x + dx, MARGIN.top + dy);
      this.pen.fill();
    }
  }

  draw_peak() {
    const {pen} = this, {peak} = this.device, x = this.x_of((peak.time - FIRST) / WIDTH);
    if (this.hidden.size || x < MARGIN.left - 1 || x > this.width - MARGIN.right + 1) return;
    const y = this.y_of(peak.allocated), label = bytes(peak.allocated);
    pen.font = `600 12px ${FONT}`;
    const wide = pen.measureText(label).width + 12, right = x + wide + 12 < this.width - MARGIN.right;
    const left = right ? x + 9 : x - 9 - wide;
    pen.fillStyle = colour('--surface');
    pen.strokeStyle = colour('--ink');
    pen.lineWidth = 1;
    pen.beginPath();
    pen.roundRect(left, y - 9, wide, 19, 5);
    pen.fill();
    pen.stroke();
    pen.beginPath();
    pen.arc(x, y, 4, 0, 7);
    pen.lineWidth = 2;
    pen.fill();
    pen.stroke();
    pen.fillStyle = colour('--ink');
    pen.textAlign = 'left';
    pen.textBaseline = 'middle';
    pen.fillText(label, left + 6, y + 1);
    pen.font = `${SMALL} ${FONT}`;
  }

  // The pinned moment, the pointer, and what is about to be zoomed to.
  draw_lines() {
    const bottom = this.height - MARGIN.bottom, {pen} = this;
    if (this.drag) {
      const [from, to] = this.drag;
      pen.globalAlpha = 0.14;
      pen.fillStyle = colour('--ink');
      pen.fillRect(Math.min(from, to), MARGIN.top, Math.abs(to - from), bottom - MARGIN.top);
      pen.globalAlpha = 1;
    }
    const x = this.pin === null ? -1 : this.x_of((this.pin - FIRST) / WIDTH);
    if (x >= MARGIN.left && x <= this.width - MARGIN.right) this.line(x, MARGIN.top - 4, x, bottom, colour('--ink'), 1.5);
    if (this.cursor !== null) this.line(this.cursor + 0.5, MARGIN.top - 4, this.cursor + 0.5, bottom, colour('--muted'));
  }

  line(x, y, to_x, to_y, ink, width = 1) {
    const {pen} = this;
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(to_x, to_y);
    pen.lineWidth = width;
    pen.strokeStyle = ink;
    pen.stroke();
  }
}

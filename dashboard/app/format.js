// Numbers as people read them. Knows no page.

const units = (value, steps, base) => {
  let step = 0;
  while (Math.abs(value) >= base && step < steps.length - 1) {
    value /= base;
    step += 1;
  }
  return (step === 0 || Math.abs(value) >= 100 ? Math.round(value) : value.toFixed(1)) + steps[step];
};

const count = (value) => units(value, ["", "k", "M", "G"], 1000);
const bytes = (value) => units(value, [" B", " kB", " MB", " GB", " TB"], 1024);
const bits = (value) => units(value * 8, [" b", " kb", " Mb", " Gb", " Tb"], 1000);
const perSecond = (value) => (value > 0 && value < 10 ? value.toFixed(1) : count(value));
const percent = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} %`;
const milliseconds = (value) => (value === undefined ? "–" : value < 1 ? "< 1 ms" : value < 10000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`);
const microseconds = (value) => (value === undefined ? "–" : value < 1000 ? `${value} µs` : milliseconds(value / 1000));
const duration = (ms) => {
  const seconds = Math.floor(ms / 1000);
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = parts.findIndex(([length]) => seconds >= length);
  return at < 0 ? "0 s" : `${Math.floor(seconds / parts[at][0])} ${parts[at][1]}`;
};

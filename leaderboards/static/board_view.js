// What of the board is shown, and how that is written in the address: ?sort=-gsm8k&q=llada&family=dream&tasks=a,b&hide=nfe
"use strict";

const BoardAddress = {
  // Part of the address that holds the view. Some browsers let no script change the query of a file: then the fragment.
  read() {
    const hash = location.hash.startsWith("#?") ? location.hash.slice(2) : "";
    return new URLSearchParams(hash || location.search);
  },

  write(view) {
    const pairs = Object.entries(view).filter(([, value]) => value !== "");
    const text = pairs.map(([name, value]) => `${name}=${BoardAddress.encode(value)}`).join("&");
    if (text === BoardAddress.written) return;
    BoardAddress.written = text;
    try {
      history.replaceState(null, "", location.pathname + (text && `?${text}`));
    } catch {
      location.replace(`#?${text}`);
    }
  },

  written: null,

  // As readable as an address may be: commas and slashes stay, a space is a plus.
  encode(value) {
    return encodeURIComponent(value).replaceAll("%2C", ",").replaceAll("%2F", "/").replaceAll("%20", "+");
  },
};

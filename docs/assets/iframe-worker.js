// Lets the search work when the pages are opened from disk, where browsers start no workers.
// A hidden frame takes the place of the worker: it loads the same script, and messages are handed
// over as events.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      const inner = frame.contentWindow
      const load = (address) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script")
          Object.assign(script, { src: address, onload: resolve, onerror: reject })
          inner.document.head.append(script)
        })
      inner.importScripts = (...addresses) => Promise.all(addresses.map(load))
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inner = inner
      this.ready = load(url)
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}

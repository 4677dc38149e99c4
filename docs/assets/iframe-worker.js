// A browser starts no Worker from a file: address. There, run the worker's script in a hidden frame instead.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((resolve) => {
        const attach = () => {
          document.body.append(frame);
          const inner = frame.contentWindow;
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = frame.contentDocument.createElement("script");
          script.src = address;
          script.onload = () => resolve(inner);
          frame.contentDocument.head.append(script);
        };
        document.body ? attach() : addEventListener("DOMContentLoaded", attach);
      });
      this.frame = frame;
    }
    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };

// SPDX-License-Identifier: GPL-3.0-or-later
// What configurable-http-proxy has no option for. Node.js loads it before the proxy.
"use strict";
const dns = require("dns");
const http = require("http");
const https = require("https");
const net = require("net");

// Where the hub is, where sessions have origins of their own; empty otherwise.
const HUB = process.env.PORTAL_HUB ? new URL(process.env.PORTAL_HUB) : null;
const HSTS = "max-age=31536000";
// With the first a session would get the requests of others, and with the second it would log them out.
const DROPPED = new Set(["service-worker-allowed", "clear-site-data"]);
const SESSION = /^([0-9a-f]{8}|[0-9a-f]{32})\.[0-9a-f]{32}\.session\.invalid$/;

// --- answers ---

const { setHeader, writeHead } = http.ServerResponse.prototype;

http.ServerResponse.prototype.setHeader = function (name, value) {
  return DROPPED.has(String(name).trim().toLowerCase()) ? this : setHeader.call(this, name, value);
};

http.ServerResponse.prototype.writeHead = function (...words) {
  if (!this.headersSent) setHeader.call(this, "Strict-Transport-Security", HSTS);
  return writeHead.apply(this, words);
};

// --- requests ---

function hostOf(request) {
  return String(request.headers.host || "").replace(/:[0-9]*$/, "").toLowerCase();
}

// This host itself asks for the hub by its address.
const LOOPBACK = new Set(["127.0.0.1", "[::1]", "localhost"]);

// The hub writes it into its log, and counts wrong passwords by it.
function tellWho(request) {
  request.headers["x-real-ip"] = request.socket.remoteAddress;
}

// The hub's pages are on no origin of a session, where that could read them.
function guarded(listener) {
  return function (request, response) {
    tellWho(request);
    const isOfHub = /^\/hub(?:[/?]|$)/.test(request.url);
    const host = hostOf(request);
    if (HUB === null || !isOfHub || host === HUB.hostname || LOOPBACK.has(host)) {
      return listener.call(this, request, response);
    }
    const mayFollow = request.method === "GET" || request.method === "HEAD";
    response.writeHead(mayFollow ? 302 : 421, mayFollow ? { Location: HUB.origin + request.url } : {});
    response.end();
  };
}

const { createServer } = https;
https.createServer = function (options, listener) {
  // The server of the hub's orders wants a certificate.
  if (options.requestCert) return createServer.call(this, options, listener);
  const server = createServer.call(this, options, guarded(listener));
  // What asks for a WebSocket comes another way, and gets to the hub, too.
  return server.prependListener("upgrade", tellWho);
};

// --- whom the proxy asks ---

const { request } = https;
https.request = function (options, ...more) {
  // Node.js would look whether the certificate is that of the host which somebody's browser has named.
  if (options.hostname) options.servername = net.isIP(options.hostname) ? "" : options.hostname;
  return request.call(this, options, ...more);
};

// The host of a session has its address in it: see portal/identity.py of the collection.
function addressOf(digits) {
  const bytes = Buffer.from(digits, "hex");
  return bytes.length === 4 ? bytes.join(".") : digits.match(/.{4}/g).join(":");
}

const { lookup } = dns;
dns.lookup = function (name, ...more) {
  const found = SESSION.exec(name);
  return lookup.call(this, found ? addressOf(found[1]) : name, ...more);
};

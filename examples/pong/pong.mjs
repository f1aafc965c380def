// Answers GET /pong/N with N bytes, at the port that is the first argument.
import { createServer } from 'node:http'

createServer((request, response) => {
  const last = request.url.split('/').pop()
  if (!/^\d+$/.test(last)) {
    response.writeHead(400).end()
    return
  }
  const content = Buffer.alloc(Number(last), 'pong')
  response.writeHead(200, { 'Content-Length': content.length }).end(content)
}).listen(Number(process.argv[2]))

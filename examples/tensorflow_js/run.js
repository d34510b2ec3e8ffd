// Runs what tensorflowjs_converter has made of a SavedModel in Node, on the CPU.
//
//     npm install @tensorflow/tfjs@4.22.0
//     node run.js FOLDER < inputs.json
//
// Inputs and what it prints are JSON, nested lists by name: {"image": [[[[0.5], …]]]}.

const fs = require("node:fs");
const path = require("node:path");
const tf = require("@tensorflow/tfjs");

const TYPES = { DT_INT32: "int32", DT_BOOL: "bool" };

// loadGraphModel fetches addresses; a file is read by such an object.
function files(folder) {
  const model = JSON.parse(fs.readFileSync(path.join(folder, "model.json"), "utf8"));
  const paths = model.weightsManifest.flatMap((group) => group.paths);
  const data = Buffer.concat(paths.map((name) => fs.readFileSync(path.join(folder, name))));
  const weightSpecs = model.weightsManifest.flatMap((group) => group.weights);
  return { load: () => ({ ...model, weightSpecs, weightData: new Uint8Array(data).buffer }) };
}

async function main(folder) {
  await tf.setBackend("cpu");
  const model = await tf.loadGraphModel(files(folder));
  const { inputs, outputs } = model.modelSignature;
  const values = JSON.parse(fs.readFileSync(0, "utf8"));
  const given = Object.entries(inputs).map(([name, { name: tensor, dtype }]) =>
    [tensor, tf.tensor(values[name], undefined, TYPES[dtype] ?? "float32")]);
  const keys = Object.keys(outputs);
  const wanted = keys.map((key) => outputs[key].name);
  const results = [await model.executeAsync(Object.fromEntries(given), wanted)].flat();
  const lists = await Promise.all(results.map((tensor) => tensor.array()));
  console.log(JSON.stringify(Object.fromEntries(keys.map((key, i) => [key, lists[i]]))));
}

main(process.argv[2]);

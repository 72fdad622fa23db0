// Text in, labels and probabilities out, from a folder that `ade export` wrote; the same in a page and in Node.
import { Tokenizer } from "@huggingface/tokenizers";

const BATCH = 32; // texts at a time

export class Classifier {
  // `ort` is onnxruntime-web, `read` gives the bytes of a file of the folder.
  static async load(ort, read) {
    const json = async (name) => JSON.parse(new TextDecoder().decode(await read(name)));
    const [config, tokenizer, model] = await Promise.all([json("config.json"), json("tokenizer.json"), read("model.onnx")]);
    return new Classifier(ort, config, new Tokenizer(tokenizer, {}), await ort.InferenceSession.create(model));
  }

  constructor(ort, config, tokenizer, session) {
    Object.assign(this, { ort, config, tokenizer, session });
  }

  // Token ids of a text, cut to what the model reads, special tokens around it; a text without any token is id 0.
  encode(text) {
    const { before, after, max_length } = this.config;
    const limit = max_length - before.length - after.length;
    const ids = this.tokenizer.encode(text, { add_special_tokens: false }).ids.slice(0, limit);
    const all = [...before, ...ids, ...after];
    return all.length ? all : [0];
  }

  // For each text an answer: what the model decided, and every label with its probability, the likeliest first.
  async classify(texts) {
    const answers = [];
    for (let start = 0; start < texts.length; start += BATCH) {
      answers.push(...(await this.#batch(texts.slice(start, start + BATCH))));
    }
    return answers;
  }

  async #batch(texts) {
    const rows = texts.map((text) => this.encode(text));
    const length = Math.max(...rows.map((row) => row.length));
    const ids = new BigInt64Array(rows.length * length); // padding is 0 in both
    const mask = new BigInt64Array(rows.length * length);
    rows.forEach((row, i) => {
      ids.set(row.map(BigInt), i * length);
      mask.fill(1n, i * length, i * length + row.length);
    });
    const tensor = (data) => new this.ort.Tensor("int64", data, [rows.length, length]);
    const { logits, probabilities } = await this.session.run({ input_ids: tensor(ids), attention_mask: tensor(mask) });
    const { data, dims } = probabilities ?? logits;
    return rows.map((_, i) => this.#answer(Array.from(data.slice(i * dims[1], (i + 1) * dims[1]))));
  }

  #answer(numbers) {
    const { problem, labels } = this.config;
    if (problem === "regression") return { decided: numbers[0], labels: [] };
    const ranked = numbers.map((probability, i) => ({ label: labels[i], probability }));
    ranked.sort((a, b) => b.probability - a.probability);
    const several = problem === "multi_label_classification";
    const decided = several ? ranked.filter((each) => each.probability >= 0.5).map((each) => each.label) : ranked[0].label;
    return { decided, labels: ranked };
  }
}

// A scripted model: thinking between markers, then the reply.
const replies = {
  '3 + 4': '<think>Three and four make seven.</think>7',
  '12 - 5': '<think>Twelve less five is seven.</think>7',
  '6 * 7': '<think>Six sevens: seven, fourteen,',
  '9 + 9': '18',
};
module.exports = class {
  id() { return 'scripted'; }
  async callApi(prompt) {
    const key = Object.keys(replies).find((words) => prompt.includes(words));
    return { output: replies[key] };
  }
};

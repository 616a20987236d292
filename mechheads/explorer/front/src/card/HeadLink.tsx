/** The name of a head; a click opens its card. */
import { headEvents } from "./headEvents";

export function HeadLink({ head, name, onShow }: { head: number; name: string; onShow?: () => void }) {
  const { onPointerEnter, onFocus, ...others } = headEvents(head);
  return (
    <button
      type="button"
      class="card-link"
      {...others}
      onPointerEnter={(event) => (onShow?.(), onPointerEnter(event))}
      onFocus={(event) => (onShow?.(), onFocus(event))}
    >
      {name}
    </button>
  );
}
